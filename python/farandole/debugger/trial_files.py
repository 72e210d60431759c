# SPDX-License-Identifier: Apache-2.0
"""The files of all workers of a trial, as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farandole.debugger.record_file import RecordReader, files_of
from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.foreign_text import is_folder


def check_folder(path: Path) -> None:
    """Refuse what no hook of Farandole writes to.

    Raises:
        InvalidArgument: there is no such folder.
        NotSupported: it has files of smdebug itself.
    """
    if not is_folder(path):
        raise InvalidArgument(
            sentences(
                "debugger-trial",
                f"create_trial() got '{path}'.",
                "there is no such folder.",
                "pass the out_dir of a hook; it exists once a step was saved.",
            )
        )
    if not (path / "tensors").is_dir() and any(path.glob("events/*/*.tfevents")):
        raise NotSupported(
            sentences(
                "debugger-foreign-trial",
                f"create_trial() got '{path}', which smdebug has written.",
                "its files of tensors have a format of their own, and Farandole reads its own.",
                "read it with smdebug itself, or save the tensors again by a hook of Farandole.",
            )
        )


class TrialFiles:
    """Reads new lines of all workers. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers_of_run = 1
        """How many workers write in the present run, as its worker 0 says."""
        self._readers: dict[Path, RecordReader] = {}
        self._newest: dict[str, RecordReader] = {}  # of each worker

    @property
    def damaged_lines(self) -> int:
        """How many lines could not be read."""
        return sum(reader.damaged_lines for reader in self._readers.values())

    def workers(self) -> list[str]:
        """Who has files."""
        return sorted(self._newest)

    def has_ended(self, worker: str) -> bool:
        """Whether it has ended or died."""
        return self._newest[worker].has_ended

    def have_all_ended(self) -> bool:
        """Whether every worker has."""
        ended = [reader.has_ended for reader in self._newest.values()]
        return all(ended) and len(ended) >= self.workers_of_run

    def new_records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines since the last call, each with its worker; those of a worker in order."""
        for path in files_of(self.folder):
            worker = path.name.split(".")[0]
            reader = self._readers.setdefault(path, RecordReader(path))
            self._newest[worker] = reader
            for record in reader.new_records():
                if "format" in record and worker == "worker_0":
                    self.workers_of_run = int(record.get("workers", 1))
                yield worker, record
