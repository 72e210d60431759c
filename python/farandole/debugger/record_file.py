# SPDX-License-Identifier: Apache-2.0
"""The lines that a worker appends to its files, and how they are read while it goes on.

Below the folder of a hook::

    tensors/worker_0.0000.jsonl             lines of JSON; the next file is begun at 10 MB
    tensors/worker_0.0000.7.safetensors     whole tensors that one line has (raw_file.py)

Each file begins with ``{"format": 1, "worker", "workers", "locked"}``. Then there are

- ``{"collections": {name: {"include_regex", "tensor_names"}}}``: they hold from here on.
- ``{"mode", "step", "global", "time", "tensors": {name: {...}}, "raw": file}``: a part of a step.
  A tensor has "dtype" and "shape"; a single number its "value", any other its reductions by name
  ("min", "abs_mean", "l2"), how many elements are "zeros", "nan" and "inf", and "raw" if the file
  has its elements. NaN and Inf are strings.
- ``{"complete": global step}``: nothing more comes of this step and those before.
- ``{"end": true}``: the worker has ended.

A line is one write() to the operating system, so a killed process loses none that it has written.
A process holds a lock (flock) on its file; a file that is neither locked nor ended is one of a
process that died. A training that goes on begins a file with the next number.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farandole.debugger.modes import ModeKeys

FORMAT = 1
ROTATION_BYTES = 10_000_000


def _storable(value: Any) -> Any:
    """``value``, with NaN and Inf as strings, since JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _storable(each) for key, each in value.items()}
    return value


class RecordWriter:
    """Appends lines to the files of one worker. One thread at a time."""

    def __init__(self, folder: Path, worker: str, workers: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._worker, self._workers = folder, worker, workers
        numbers = [number_of(path) for path in files_of(folder, worker)]
        self._number = max(numbers, default=-1) + 1
        self._raw_files = 0
        self._begin_file()

    def _begin_file(self) -> None:
        """Make a file that is locked and has its header before a reader can find it."""
        path = self._folder / f"{self._worker}.{self._number:04d}.jsonl"
        hidden = path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(hidden, flags, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            is_locked = False
        else:
            is_locked = True
        self._bytes = 0
        header = {"format": FORMAT, "worker": self._worker, "workers": self._workers}
        self.write({**header, "locked": is_locked})
        hidden.rename(path)

    def write(self, record: dict[str, Any]) -> None:
        """Append a line."""
        line = json.dumps(_storable(record), separators=(",", ":")).encode() + b"\n"
        if self._bytes + len(line) > ROTATION_BYTES and self._bytes > 0:
            self._number += 1
            before = self._file
            self._begin_file()
            os.close(before)  # only now, so that a reader always finds a file that is locked
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._bytes += written

    def new_raw_file(self) -> Path:
        """Where the tensors of the next line can be written."""
        self._raw_files += 1
        name = f"{self._worker}.{self._number:04d}.{self._raw_files}.safetensors"
        return self._folder / name

    def close(self) -> None:
        """Say that the worker has ended."""
        self.write({"end": True})
        os.close(self._file)


def files_of(folder: Path, worker: str = "*") -> list[Path]:
    """The files of a worker, or of all, in their order."""
    files = (path for path in folder.glob(f"{worker}.*.jsonl") if path.is_file())
    return sorted(files, key=lambda path: (path.stem, number_of(path)))


def number_of(path: Path) -> int:
    """The number in a file's name; -1 if it has none."""
    number = path.name.split(".")[-2]
    return int(number) if number.isdecimal() else -1


class RecordReader:
    """Reads the lines of one file as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged_lines = 0
        self.has_ended = False
        self._offset = 0
        self._is_locked_by_writer = True
        self._has_rest = False  # bytes after the last line

    def new_records(self) -> list[dict[str, Any]]:
        """The lines that were appended since the last call. Lines that cannot be read count."""
        records = self._read()
        if not self.has_ended and self._writer_is_gone():
            records += self._read()  # what it has written in between
            self.damaged_lines += self._has_rest
            self.has_ended = True
        return records

    def _read(self) -> list[dict[str, Any]]:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, rest = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        self._has_rest = bool(rest)
        records = [record for line in whole.split(b"\n") if (record := self._parse(line))]
        self.has_ended = self.has_ended or any("end" in record for record in records)
        return records

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            record = json.loads(line or b"{}")
        except (ValueError, RecursionError):
            record = None
        if not _is_sound(record):
            self.damaged_lines += 1
            return None
        if "format" in record:
            self._is_locked_by_writer = bool(record.get("locked"))
        return dict(record)

    def is_being_written(self) -> bool:
        """Whether a process that lives holds the file; False where nobody knows."""
        return self._is_locked_by_writer and not self.has_ended

    def _writer_is_gone(self) -> bool:
        if not self._is_locked_by_writer:
            return False
        with self.path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return False
            return True


def _is_sound(record: Any) -> bool:
    """Whether a line has what its kind of line must have."""
    if not isinstance(record, dict) or not _are_whole(record.get("workers", 1)):
        return False
    if "tensors" in record:
        return (
            record.get("mode") in [*ModeKeys.__members__]
            and _are_whole(record.get("step"), record.get("global"))
            and isinstance(record.get("time"), (int, float))
            and _is_file_name(record.get("raw", "none"))
            and _are(_is_entry, record["tensors"])
        )
    if "collections" in record:
        return _are(_is_collection, record["collections"])
    return _are_whole(record.get("complete", 0))


def _are(is_sound: Callable[[dict[str, Any]], bool], entries: Any) -> bool:
    return isinstance(entries, dict) and all(
        isinstance(each, dict) and is_sound(each) for each in entries.values()
    )


def _is_entry(tensor: dict[str, Any]) -> bool:
    shape, others = tensor.get("shape"), {"shape", "dtype", "raw"}
    return (
        isinstance(tensor.get("dtype"), str)
        and isinstance(shape, list)
        and _are_whole(*shape)
        and all(_is_number(value) for key, value in tensor.items() if key not in others)
    )


def _is_collection(collection: dict[str, Any]) -> bool:
    texts: list[Any] = []
    for key in ("include_regex", "tensor_names"):
        if not isinstance(collection.get(key), list):
            return False
        texts += collection[key]
    if not all(isinstance(each, str) for each in texts):
        return False
    try:
        return all(map(re.compile, collection["include_regex"]))
    except (re.error, RecursionError, OverflowError):
        return False


def _are_whole(*values: Any) -> bool:
    return all(isinstance(value, int) and abs(value) < 2**63 for value in values)


def _is_number(value: Any) -> bool:
    """NaN and Inf are strings, and a tensor without elements has nothing."""
    is_finite = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return value is None or is_finite or value in ["nan", "inf", "-inf"]


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and "/" not in value and "\0" not in value
