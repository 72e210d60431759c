# SPDX-License-Identifier: Apache-2.0
"""Results as JSON lines: one row a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, sentences

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
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def check_writable(option: str, path: Path) -> None:
    """Finds out before hours of measuring whether results can be written.

    Raises:
        InvalidArgument: they cannot.
    """
    is_new = not path.exists()
    try:
        with path.open("a"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise InvalidArgument(
            sentences(
                "bench-file",
                f"{option} {path} cannot be written.",
                f"{error.strerror}: {error.filename}.",
                "pass a file in a folder that exists and in which you may write.",
            )
        ) from error
