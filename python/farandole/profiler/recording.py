# SPDX-License-Identifier: Apache-2.0
"""The recorder of what this rank's threads do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerAction

from farandole import _C, arguments
from farandole.errors import InvalidArgument, SystemError, sentences
from farandole.logs import LOGGER
from farandole.profiler import garbage, loader_workers, operators
from farandole.profiler.monitor import SystemMonitor
from farandole.rule_actions import STOP_FILE

_Schedule = Callable[[int], ProfilerAction]

_recording: _Recording | None = None


def start(
    folder: str | os.PathLike[str] = "profiler-output",
    *,
    process_group: dist.ProcessGroup | None = None,
    schedule: _Schedule | None = None,
    operators: bool = False,
    system_interval_ms: int | None = 500,
    max_file_bytes: int = 10 * 2**20,
    max_file_seconds: float = 60.0,
) -> None:
    """Write what this rank's threads do to files, until `stop` or the end of the process.

    That is: collectives, forwards and backwards of a DistributedDataParallel with their buckets,
    steps of optimizers, waits for a DataLoader, checkpoints, garbage collection and what is
    annotated (`annotate`). Files below ``framework/pevents`` have Chrome's trace format; a killed
    process loses its last tenth of a second. The clocks of all ranks are compared every 10 s.

    Does nothing if this process already records to that folder. Local: ranks may differ, but all
    times are of one clock only if rank 0 records too.

    Args:
        folder: Where; the same for all ranks.
        process_group: The ranks; those of the default group, or those that the launcher tells.
        schedule: As torch.profiler.schedule(): which steps are recorded; all if None. Call `step`
            after each.
        operators: Run torch.profiler too, in the active steps of the schedule: operators and
            kernels go to ``framework/torch``.
        system_interval_ms: How often the hardware is looked at, by the first rank of each host
            (`SystemMonitor`); None: never.
        max_file_bytes: Then a new file begins.
        max_file_seconds: Likewise.

    Raises:
        InvalidArgument: ``operators`` without a schedule, limits that are not positive, an
            interval that SystemMonitor does not take, or a folder other than the one to which this
            process already records.
        NotSupported: psutil is missing, which looks at the hardware.
        SystemError: the folder cannot be written.
    """
    global _recording
    if _recording is not None and _recording.is_of_this_process():
        _recording.check_folder(folder)
        return
    if operators and schedule is None:
        raise InvalidArgument(
            sentences(
                "profile-operators-schedule",
                "profiler.start() got operators=True and no schedule.",
                "torch.profiler keeps each operator in memory until its window of steps ends.",
                "pass schedule=torch.profiler.schedule(wait=98, warmup=1, active=1), and call "
                "step() after each step.",
            )
        )
    if not (max_file_bytes > 0 and max_file_seconds > 0):
        raise InvalidArgument(
            sentences(
                "profile-file-limits",
                f"profiler.start() got max_file_bytes={max_file_bytes} and "
                f"max_file_seconds={max_file_seconds}.",
                "a file ends when it is that large or old.",
                "pass numbers above 0.",
            )
        )
    group = None
    if process_group is not None or dist.is_initialized():
        group = arguments.group_of("profiler.start", process_group)
    monitor = None
    if system_interval_ms is not None:
        monitor = SystemMonitor(folder, interval_ms=system_interval_ms)
    options = (os.fspath(folder), group, max_file_bytes, max_file_seconds)
    recording = _Recording(options, schedule, operators, monitor)
    try:
        recording.begin()
        if _rank(group) == 0:
            (Path(folder) / STOP_FILE).unlink(missing_ok=True)  # of a training before
    except BaseException:
        recording.end()
        raise
    _recording = recording


def stop() -> None:
    """Write what is there, and close the files. Local."""
    global _recording
    if _recording is not None and _recording.is_of_this_process():
        _recording.end()
    _recording = None


def is_recording() -> bool:
    """Whether this process records now: not outside of the active steps of a schedule."""
    return bool(_C.is_recording())


def step(mode: str = "TRAIN") -> None:
    """End a step of the training, or in mode "EVAL" of the evaluation, and go on in the schedule.

    Without such calls, a step ends with each step of an optimizer. Local; any thread.
    """
    if _recording is not None and _recording.is_of_this_process():
        _recording.step(mode)


def _rank(group: dist.ProcessGroup | None) -> int:
    return group.rank() if group is not None else _C.find_launch().rank


class _Recording:
    def __init__(
        self,
        options: tuple[str, dist.ProcessGroup | None, int, float],
        schedule: _Schedule | None,
        with_operators: bool,
        monitor: SystemMonitor | None,
    ) -> None:
        """Take the options of the recorder: folder, group, bytes and seconds of a file."""
        self._options = options
        self._schedule = schedule
        self._monitor = monitor
        self._steps = 0
        self._process = os.getpid()
        self._folder = Path(options[0]).resolve()
        self._operators: Any = None
        if with_operators and schedule is not None:
            self._operators = operators.profile(Path(options[0]), _rank(options[1]), schedule)

    def is_of_this_process(self) -> bool:
        return self._process == os.getpid()

    def check_folder(self, folder: str | os.PathLike[str]) -> None:
        if Path(folder).resolve() == self._folder:
            return
        raise InvalidArgument(
            sentences(
                "profile-second-folder",
                f"profiler.start() got the folder {os.fspath(folder)}.",
                f"this process already records to {self._folder}.",
                "call stop() first, or pass the same folder.",
            )
        )

    def begin(self) -> None:
        self._follow_schedule()
        garbage.watch()
        loader_workers.watch()
        if self._monitor is not None:
            self._monitor.start()
        if self._operators is not None:
            self._operators.start()

    def step(self, mode: str) -> None:
        _C.end_step(mode)
        self._steps += 1
        try:
            self._follow_schedule()
        except SystemError as error:  # what cannot be written does not end a training
            LOGGER.warning("profiler: step %d is not recorded: %s", self._steps, error)
        if self._operators is not None:
            self._operators.step()

    def end(self) -> None:
        if self._operators is not None:
            self._operators.stop()
        garbage.leave()
        if self._monitor is not None:
            self._monitor.stop()
        _C.stop_recording()

    def _follow_schedule(self) -> None:
        is_active = self._schedule is None or self._schedule(self._steps) in (
            ProfilerAction.RECORD,
            ProfilerAction.RECORD_AND_SAVE,
        )
        if is_active and not _C.is_recording():
            # Steps are the program's if it has a schedule to follow.
            first_step = None if self._schedule is None else self._steps
            _C.start_recording(*self._options, first_step)
        elif not is_active and _C.is_recording():
            _C.stop_recording()
