# SPDX-License-Identifier: Apache-2.0
"""Turns tensors into lines of a worker's files."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from farandole.debugger import measures, raw_file
from farandole.debugger.record_file import RecordReader, RecordWriter, files_of
from farandole.errors import InvalidArgument, sentences
from farandole.logs import LOGGER


@dataclass(frozen=True)
class Position:
    """A step, by its mode and among all steps."""

    mode: str
    step: int
    global_step: int


@dataclass
class _Taken:
    """A tensor of which the program may go on to change the elements."""

    name: str
    dtype: str
    shape: list[int]
    measured: dict[str, Any]
    elements: Tensor | None

    def is_one_number(self) -> bool:
        elements = self.elements
        return elements is not None and elements.numel() == 1 and not elements.is_complex()

    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = {"dtype": self.dtype, "shape": self.shape}
        if self.elements is None:
            return {**found, **self.measured}
        if self.is_one_number():
            return {**found, "value": self.elements.item()}
        return {**found, **self.measured, "raw": True}


class Recorder:
    """Takes tensors of a step, and writes what it has taken when told to.

    Files are begun by the first line. Threads: one at a time.
    """

    def __init__(self, folder: Path, *, dry_run: bool) -> None:
        self._folder, self._dry_run = folder, dry_run
        self._writer: RecordWriter | None = None
        self._taken: list[_Taken] = []
        self._collections: dict[str, Any] = {}
        self._process = os.getpid()
        self._unfinished: int | None = None  # a step with lines, which is not complete yet

    def take(self, name: str, value: Tensor, keys: Iterable[str], *, elements: bool) -> None:
        """Measure a tensor now, and copy its elements if they are to be saved."""
        value = measures.dense(value.detach())
        self._taken.append(
            _Taken(
                name,
                str(value.dtype).removeprefix("torch."),
                list(value.shape),
                measures.measure(value, sorted(keys)),
                raw_file.copy_for_file(value) if elements else None,
            )
        )

    def has_taken(self) -> bool:
        """Whether something is to be written."""
        return bool(self._taken)

    def write(
        self,
        position: Position,
        collections: dict[str, Any],
        worker: tuple[int, int],
        timestamp: float | None = None,
    ) -> dict[str, float]:
        """Write one line with what was taken.

        Args:
            position: The step of all of it.
            collections: As they are now; written if they have changed.
            worker: This rank, and how many of them write.
            timestamp: Seconds since the epoch; now if None.

        Returns:
            The single numbers in the line.
        """
        taken, self._taken = self._taken, []
        if self._process != os.getpid():  # a forked child must not write to its parent's files
            self._dry_run = True
        measures.to_numbers(each.measured for each in taken)
        if not self._dry_run:
            with self._outliving_full_disks():
                writer = self._writer or self._begin(*worker)
                if collections != self._collections:
                    writer.write({"collections": collections})
                    self._collections = collections
                writer.write(self._line(writer, position, taken, timestamp))
                self._unfinished = position.global_step
        return {each.name: each.entry()["value"] for each in taken if each.is_one_number()}

    def _line(
        self, writer: RecordWriter, at: Position, taken: list[_Taken], timestamp: float | None
    ) -> dict[str, Any]:
        entries = {each.name: each.entry() for each in taken}
        line: dict[str, Any] = {"mode": at.mode, "step": at.step, "global": at.global_step}
        line["time"] = time.time() if timestamp is None else timestamp
        whole = {
            each.name: each.elements
            for each in taken
            if each.elements is not None and "raw" in entries[each.name]
        }
        if whole:
            path = writer.new_raw_file()
            raw_file.write(path, whole)
            line["raw"] = path.name
        return {**line, "tensors": entries}

    def _begin(self, rank: int, workers: int) -> RecordWriter:
        worker = f"worker_{rank}"
        self._check_alone(worker)
        self._writer = RecordWriter(self._folder, worker, workers)
        return self._writer

    def _check_alone(self, worker: str) -> None:
        for path in files_of(self._folder, worker)[-1:]:
            reader = RecordReader(path)
            deque(reader.new_records(), maxlen=0)  # the last one may be the end
            if reader.is_being_written():
                raise InvalidArgument(
                    sentences(
                        "debugger-folder",
                        f"another hook is writing into '{self._folder}' as {worker}.",
                        "the steps of the two would replace each other.",
                        "close() the other hook before, or use another folder; ranks are told "
                        "apart once there is a process group.",
                    )
                )

    @contextmanager
    def _outliving_full_disks(self) -> Iterator[None]:
        """Let an error of the disk end what is saved, and not the training."""
        try:
            yield
        except OSError as error:
            LOGGER.error("the debugger saves nothing more into '%s': %s", self._folder, error)
            self._dry_run, self._writer, self._unfinished = True, None, None

    def complete(self) -> None:
        """Say that nothing more comes of the last step that was written."""
        if self._process != os.getpid():
            return
        if self._unfinished is not None and self._writer is not None:
            with self._outliving_full_disks():
                self._writer.write({"complete": self._unfinished})
            self._unfinished = None

    def close(self) -> None:
        """Say that nothing more comes at all."""
        if self._writer is not None:
            with self._outliving_full_disks():
                self._writer.close()
            self._writer = None
