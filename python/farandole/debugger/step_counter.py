# SPDX-License-Identifier: Apache-2.0
"""Counts the steps of each mode."""

from __future__ import annotations

from pathlib import Path

from farandole.debugger.modes import ModeKeys
from farandole.debugger.record_file import RecordReader, files_of
from farandole.errors import InvalidArgument, sentences


class StepCounter:
    """The present step of each mode; GLOBAL counts those of all. They begin at 0."""

    def __init__(self, folder: Path) -> None:
        """Go on after the last steps that are in the files of ``folder``, of any worker before.

        A rank of this run may be a step ahead already: its file is locked.
        """
        self.mode = ModeKeys.GLOBAL
        self._steps = dict.fromkeys(ModeKeys, -1)
        for path in files_of(folder):
            reader = RecordReader(path)
            for record in reader.new_records():
                if "tensors" in record and not reader.is_being_written():
                    self._reach(ModeKeys[record["mode"]], record["step"])
                    self._reach(ModeKeys.GLOBAL, record["global"])

    def _reach(self, mode: ModeKeys, step: int) -> None:
        self._steps[mode] = max(self._steps[mode], step)

    def advance(self) -> None:
        """A step of the present mode begins."""
        for mode in {self.mode, ModeKeys.GLOBAL}:
            self._steps[mode] += 1

    def step_of(self, mode: ModeKeys) -> int:
        """The present step of a mode; -1 before its first."""
        return self._steps[mode]

    def state_dict(self) -> dict[str, int]:
        """The steps by the names of modes."""
        return {mode.name: step for mode, step in self._steps.items()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Be where state_dict() was taken.

        Raises:
            InvalidArgument: it is no such state.
        """
        names = sorted(mode.name for mode in ModeKeys)
        if not isinstance(state, dict) or sorted(state) != names:
            raise InvalidArgument(
                sentences(
                    "debugger-state",
                    f"a hook's load_state_dict() got {state!r}.",
                    f"a state has a number of steps for each of {', '.join(names)}.",
                    "pass what the hook's state_dict() has returned.",
                )
            )
        self._steps = {mode: int(state[mode.name]) for mode in ModeKeys}
