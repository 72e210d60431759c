# SPDX-License-Identifier: Apache-2.0
"""Which steps a trial has, counted in each mode and together."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from farandole import arguments
from farandole.debugger.modes import ModeKeys


class StepPlace(NamedTuple):
    """A global step as a step of its mode, and when it was written last."""

    mode: ModeKeys
    step: int
    time_s: float


class StepIndex:
    """Finds steps in the time of a search."""

    def __init__(self) -> None:
        self._steps: dict[ModeKeys, list[int]] = {mode: [] for mode in ModeKeys}  # ascending
        self._global_of: dict[tuple[ModeKeys, int], int] = {}
        self._places: dict[int, StepPlace] = {}

    def add(self, global_step: int, place: StepPlace) -> None:
        """Take a step; once more if a part of it was written once more."""
        if global_step not in self._places:
            bisect.insort(self._steps[ModeKeys.GLOBAL], global_step)
        self._places[global_step] = place
        if place.mode != ModeKeys.GLOBAL and (place.mode, place.step) not in self._global_of:
            bisect.insort(self._steps[place.mode], place.step)
        self._global_of[place.mode, place.step] = global_step

    def steps(self, mode: ModeKeys) -> list[int]:
        """The steps of a mode, ascending. Not to be changed.

        Raises:
            InvalidArgument: it is no mode.
        """
        if not isinstance(mode, ModeKeys):
            raise arguments.wrong("a method of a trial", "mode", mode, "a member of ModeKeys")
        return self._steps[mode]

    def first_from(self, mode: ModeKeys, step: int) -> int | None:
        """The first step of a mode that is not before ``step``; None if there is none."""
        steps = self.steps(mode)
        place = bisect.bisect_left(steps, step)
        return steps[place] if place < len(steps) else None

    def up_to(self, mode: ModeKeys, step: int) -> int:
        """How many steps of a mode are not after ``step``."""
        return bisect.bisect_right(self.steps(mode), step)

    def global_step(self, mode: ModeKeys, step: int) -> int | None:
        """The global step that is ``step`` of ``mode``; None if there is none."""
        if mode == ModeKeys.GLOBAL:
            return step if step in self._places else None
        return self._global_of.get((mode, step))

    def place(self, global_step: int) -> StepPlace | None:
        """What a global step is; None if there is none."""
        return self._places.get(global_step)

    def modes(self) -> list[ModeKeys]:
        """Those that have steps, without GLOBAL."""
        return [mode for mode in ModeKeys if mode != ModeKeys.GLOBAL and self._steps[mode]]
