# SPDX-License-Identifier: Apache-2.0
"""JSON objects, one a line, of files that may still grow, be renamed, be cut or be damaged."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farandole.foreign_text import json_of
from farandole.regular_file import open_regular_file

_LARGEST = 1e18
"""No time and no rate is larger; sums of such numbers stay finite."""
_HEAD_BYTES = 512
"""By which a file is known: the inode of one that was removed is used again."""
_FRAME = b"[], \t\r"
"""What is around the objects of an array's lines."""


class Problem(NamedTuple):
    """What could not be read of a file."""

    file: str
    """Its path below the profile's folder."""
    what: str
    amount: int
    """Of files, lines, or bytes of an unfinished line."""


class GrowingFile:
    """A file, and how far it has been read. It may be renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged_lines = 0
        self.unfinished_bytes = 0
        """Of its last line, which is being written, or was when its writer was killed."""
        self.unreadable = ""
        """Why it could not be read at all."""
        self._read_bytes = 0
        self._head = b""

    def is_another(self) -> bool:
        """Whether the file at the path does not begin as the one that was read."""
        try:
            with open_regular_file(self.path) as file:
                return file.read(len(self._head)) != self._head
        except OSError:  # new_objects() says why
            return False

    def new_objects(self) -> list[dict[str, Any]]:
        """What was added since the last call. Brackets and commas of an array are passed over."""
        try:
            with open_regular_file(self.path) as file:
                file.seek(self._read_bytes)
                added = file.read()
            self.unreadable = ""
        except OSError as error:
            self.unreadable = str(error.strerror)
            return []
        if self._read_bytes == 0:
            self._head = added[:_HEAD_BYTES]
        *lines, tail = (line.strip(_FRAME) for line in added.split(b"\n"))
        found = self._parse([line for line in lines if line])
        whole_tail = _objects_of([tail]) if tail else []
        self.unfinished_bytes = 0
        if whole_tail is None:  # else the newline comes with the next object
            self.unfinished_bytes = len(added) - added.rfind(b"\n") - 1
        self._read_bytes += len(added) - self.unfinished_bytes
        return [*found, *(whole_tail or [])]

    def _parse(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """All at once; where some are damaged, each half alone."""
        found = _objects_of(lines)
        if found is not None:
            return found
        if len(lines) == 1:
            self.damaged_lines += 1
            return []
        middle = len(lines) // 2
        return self._parse(lines[:middle]) + self._parse(lines[middle:])


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
            if self._files[key].is_another():
                self._files[key] = GrowingFile(path)
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


def numbers_of(values: Collection[Any]) -> npt.NDArray[np.float64]:
    """As `number_of` of each; NaN where there is none."""
    try:
        numbers = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = np.fromiter(map(_number_or_nan, values), np.float64, len(values))
    numbers[~(np.abs(numbers) <= _LARGEST)] = np.nan
    return numbers


def _number_or_nan(value: Any) -> float:
    try:
        return number_of(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _objects_of(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """One of each line; None if that is not what they are."""
    try:
        found = json_of(b"[%b]" % b",".join(lines), finite=False)
    except ValueError:
        return None
    is_whole = len(found) == len(lines) and all(type(each) is dict for each in found)
    return found if is_whole else None
