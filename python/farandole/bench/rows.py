# SPDX-License-Identifier: Apache-2.0
"""Results as JSON lines: one row a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import json_of

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Adds a line; what was measured stays if the run is ended, even in the middle of a line."""
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")


def read(path: Path) -> list[Row]:
    """All rows; none if there is no such file. A line that was cut off at a kill is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json_of(line))
        except ValueError:
            continue
    return found


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Says what cannot be written where a disk becomes full in the middle of a run.

    Raises:
        InvalidArgument: writing within the context failed.
    """
    try:
        yield
    except OSError as error:
        raise _not_writable(option, path, f"{error.strerror}: {path}") from error


def check_fields(option: str, path: Path, fields: Iterable[str]) -> None:
    """Finds out before measuring whether a file of results has rows of something else.

    Raises:
        InvalidArgument: a row lacks one of ``fields``.
    """
    for row in read(path):
        lacking = [name for name in fields if not isinstance(row, dict) or name not in row]
        if lacking:
            raise InvalidArgument(
                sentences(
                    "bench-rows",
                    f"{option} {path} has rows of something else.",
                    f"a row has no {lacking[0]}.",
                    "pass another place, or move that file away.",
                )
            )


def check_writable(option: str, path: Path) -> None:
    """Finds out before hours of measuring whether results can be written, and read again.

    Raises:
        InvalidArgument: they cannot.
    """
    is_new = not path.exists()
    if not (is_new or path.is_file() or path.is_dir()):
        raise _not_writable(option, path, f"a device or a pipe, not a file: {path}")
    try:
        with path.open("a"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
        raise _not_writable(option, path, reason) from error


def _not_writable(option: str, path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "bench-file",
            f"{option} {path} cannot be written.",
            f"{reason}.",
            "pass a file in a folder that exists and in which you may write.",
        )
    )
