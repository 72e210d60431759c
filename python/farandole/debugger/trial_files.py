# SPDX-License-Identifier: Apache-2.0
"""The files of all workers of a trial, as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farandole.debugger.record_file import RecordReader, files_of


class TrialFiles:
    """Reads new lines of all workers. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._readers: dict[Path, RecordReader] = {}
        self.workers_of_run = 1

    @property
    def damaged_lines(self) -> int:
        """How many lines could not be read."""
        return sum(reader.damaged_lines for reader in self._readers.values())

    def workers(self) -> list[str]:
        """Who has files."""
        return sorted({_worker_of(path) for path in self._readers})

    def has_ended(self) -> bool:
        """Whether every worker has ended or died."""
        newest = {
            _worker_of(path): self._readers[path]
            for path in files_of(self.folder)
            if path in self._readers
        }
        ended = sum(reader.has_ended for reader in newest.values())
        return ended == len(newest) and ended >= self.workers_of_run

    def new_records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines since the last call, each with its worker; those of a worker in order."""
        for path in files_of(self.folder):
            reader = self._readers.setdefault(path, RecordReader(path))
            for record in reader.new_records():
                if "format" in record:
                    self.workers_of_run = int(record.get("workers", 1))
                yield _worker_of(path), record


def _worker_of(path: Path) -> str:
    return path.name.split(".")[0]
