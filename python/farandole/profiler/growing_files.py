# SPDX-License-Identifier: Apache-2.0
"""JSON objects, one a line, of files that may still grow, be renamed, be cut or be damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_LARGEST = 1e18
"""No time and no rate is larger; sums of such numbers stay finite."""


class Problem(NamedTuple):
    """What could not be read of a file."""

    file: str
    """Its path below the profile's folder."""
    what: str
    amount: int
    """Of files, lines, or bytes of an unfinished line."""


class GrowingFile:
    """A file, and how far it has been read. It is known by its inode, so it may be renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged_lines = 0
        self.unfinished_bytes = 0
        """Of its last line, which is being written, or was when its writer was killed."""
        self.unreadable = ""
        """Why it could not be read at all."""
        self._read_bytes = 0

    def new_objects(self) -> Iterator[dict[str, Any]]:
        """What was added since the last call. Brackets and commas of an array are passed over."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                added = file.read()
            self.unreadable = ""
        except OSError as error:
            self.unreadable = str(error.strerror)
            return
        lines = added.split(b"\n")
        tail = lines.pop()
        for line in lines:
            yield from self._parse(line)
        whole_tail = _object_of(tail)
        if whole_tail is not None:  # the newline comes with the next object
            yield whole_tail
        self.unfinished_bytes = 0 if whole_tail is not None or _is_frame(tail) else len(tail)
        self._read_bytes += len(added) - self.unfinished_bytes

    def _parse(self, line: bytes) -> Iterator[dict[str, Any]]:
        if _is_frame(line):
            return
        found = _object_of(line)
        if found is None:
            self.damaged_lines += 1
        else:
            yield found


class GrowingFiles:
    """Those below a part of a profile whose path there matches a pattern.

    Threads: one at a time.
    """

    def __init__(
        self, profile: Path, part: str, pattern: str, *, written_since_s: float = 0
    ) -> None:
        """Files that were last written before this time, in seconds since 1970, are left out."""
        self._profile = profile
        self._folder = profile / part
        self._written_since_s = written_since_s
        self._pattern = re.compile(pattern)
        self._files: dict[tuple[int, int], GrowingFile] = {}
        self._foreign: set[str] = set()

    def files(self) -> list[GrowingFile]:
        """All that are there now, in the order of their names; a folder may come later."""
        self._foreign.clear()
        for path in sorted(self._folder.rglob("*")):
            try:
                status = path.stat()
            except OSError:  # renamed meanwhile: the next call finds it
                continue
            if path.is_dir() or status.st_mtime < self._written_since_s:
                continue
            if not self._pattern.fullmatch(path.relative_to(self._folder).as_posix()):
                self._foreign.add(self.name_of(path))
                continue
            key = (status.st_dev, status.st_ino)
            self._files.setdefault(key, GrowingFile(path)).path = path
        return list(self._files.values())

    def problems(self) -> list[Problem]:
        """Of the files that `files` has found, as far as they were read."""
        found = [Problem(name, "not a file of this kind", 1) for name in sorted(self._foreign)]
        for file in self._files.values():
            name = self.name_of(file.path)
            if file.unreadable:
                found.append(Problem(name, f"cannot be read: {file.unreadable}", 1))
            if file.damaged_lines:
                found.append(Problem(name, "damaged lines", file.damaged_lines))
            if file.unfinished_bytes:
                found.append(Problem(name, "bytes of an unfinished line", file.unfinished_bytes))
        return found

    def name_of(self, path: Path) -> str:
        """As problems have it."""
        return path.relative_to(self._profile).as_posix()


def number_of(value: Any) -> float:
    """A number that one can count with.

    Raises:
        TypeError, ValueError, OverflowError: it is none.
    """
    number = float(value)
    if not abs(number) <= _LARGEST:
        raise ValueError(value)
    return number


def _is_frame(line: bytes) -> bool:
    """Nothing but the array's brackets and commas."""
    return not line.strip(b"[], \t\r")


def _object_of(line: bytes) -> dict[str, Any] | None:
    begin, end = line.find(b"{"), line.rfind(b"}")
    if begin < 0 or not (_is_frame(line[:begin]) and _is_frame(line[end + 1 :])):
        return None
    try:
        found = json.loads(str(line[begin : end + 1], "utf-8"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
