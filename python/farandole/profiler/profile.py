# SPDX-License-Identifier: Apache-2.0
"""A folder with what was recorded of a run."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.foreign_text import is_folder
from farandole.profiler.growing_files import Problem
from farandole.profiler.steps import RankSteps, steps_of
from farandole.profiler.system_metrics import SystemMetrics
from farandole.profiler.timeline import Timeline


class Profile:
    """System metrics and timelines of all hosts and ranks, of a run that may still go on.

    What is cut or damaged is left out and named by `problems`. Threads: one at a time::

        profile = farandole.profiler.Profile("profile")
        for span in profile.timeline.ranks()[0].spans("forward"):
            print(span.start_us, span.duration_us)
    """

    def __init__(self, folder: str | os.PathLike[str], *, written_since_s: float = 0) -> None:
        """Read what there is.

        Args:
            folder: What `start` or `SystemMonitor` was given.
            written_since_s: Files that were last written before this time, in seconds since 1970,
                are left out: a file has a minute.

        Raises:
            InvalidArgument: there is no such folder.
            NotSupported: it has nothing but files of SageMaker Profiler itself.
        """
        self.path = Path(folder)
        if not is_folder(self.path):
            raise InvalidArgument(
                sentences(
                    "profile-folder",
                    f"a profile was to be read from '{self.path}'.",
                    "there is no such folder.",
                    "pass the folder that was given to SystemMonitor or to the recorder.",
                )
            )
        self.metrics = SystemMetrics(self.path, written_since_s=written_since_s)
        self.timeline = Timeline(self.path, written_since_s=written_since_s)
        self._steps: list[RankSteps] | None = None
        if not self.refresh() and any(self.path.rglob("*.smpraw")):
            raise NotSupported(
                sentences(
                    "profile-foreign",
                    f"a profile was to be read from '{self.path}', which has .smpraw files alone.",
                    "SageMaker Profiler writes them, and their format is not published.",
                    "record the run again, by smppy over Farandole or farandole.profiler.start().",
                )
            )

    @property
    def name(self) -> str:
        """That of the folder, for messages."""
        return self.path.resolve().name

    def refresh(self) -> int:
        """Read what was added; return how many values and events that is."""
        with _garbage_collection_paused():
            added = self.metrics.refresh() + self.timeline.refresh()
        if added:
            self._steps = None
        return added

    def steps(self) -> list[RankSteps]:
        """The parts of each step, of each rank that has recorded one."""
        if self._steps is None:
            found = (steps_of(rank) for rank in self.timeline.ranks())
            self._steps = [each for each in found if len(each.numbers)]
        return self._steps

    def problems(self) -> list[Problem]:
        """Files and lines that could not be read."""
        return self.metrics.problems() + self.timeline.problems()


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """What is read has no cycles, and each collection would look at all that torch has made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
