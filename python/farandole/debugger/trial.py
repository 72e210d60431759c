# SPDX-License-Identifier: Apache-2.0
"""Reads what hooks have saved, also while the training goes on."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farandole.debugger.collection import Collection, no_collection
from farandole.debugger.exceptions import (
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
)
from farandole.debugger.modes import ModeKeys
from farandole.debugger.saved_value import SavedValue
from farandole.debugger.step_state import StepState
from farandole.debugger.trial_files import TrialFiles
from farandole.debugger.trial_tensor import Tensor
from farandole.errors import Error, InvalidArgument, sentences

_POLL_S = 0.2


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    range_steps: tuple[int | None, int | None] | None = None,
) -> Trial:
    """Open what a hook writes to ``path``, its out_dir.

    Args:
        path: The folder.
        name: Of the trial; that of the folder if None.
        range_steps: Global steps to look at, from the first up to before the second; None is open.

    Raises:
        InvalidArgument: the folder does not exist.
    """
    return Trial(Path(path), name, range_steps)


class Trial:
    """All steps and tensors of one training. Each call reads what was written meanwhile.

    ``mode`` says in whose steps a step counts. One thread at a time.
    """

    def __init__(
        self, path: Path, name: str | None, range_steps: tuple[int | None, int | None] | None
    ) -> None:
        if not path.is_dir():
            raise InvalidArgument(
                sentences(
                    "debugger-trial",
                    f"create_trial() got '{path}'.",
                    "there is no such folder.",
                    "pass the out_dir of a hook; it exists once a step was saved.",
                )
            )
        self.name = name or path.resolve().name
        self.path = path
        self.last_written_s = 0.0
        """When the newest line was written, in seconds since the epoch."""
        self.loaded_all_steps = False
        self._range = range_steps or (None, None)
        self._files = TrialFiles(path / "tensors")
        self._refreshes = True
        self._tensors: dict[str, Tensor] = {}
        self._names_at: dict[int, set[str]] = {}
        self._workers_at: dict[int, set[str]] = {}
        self._time_at: dict[int, float] = {}
        self._mode_at: dict[int, tuple[ModeKeys, int]] = {}
        self._global_of: dict[tuple[ModeKeys, int], int] = {}
        self._complete: dict[str, int] = {}  # by worker: the last step of which all is written
        self._collections: dict[str, Collection] = {}
        self.refresh()

    # Reading.

    @property
    def damaged_lines(self) -> int:
        """How many lines of the files could not be read; they were skipped."""
        return self._files.damaged_lines

    def refresh(self) -> None:
        """Read what was written since the last time. All methods do it themselves."""
        if not self._refreshes or self.loaded_all_steps:
            return
        for worker, record in self._files.new_records():
            self._take(worker, record)
        self.loaded_all_steps = self._files.has_ended()

    @contextmanager
    def no_refresh(self) -> Iterator[None]:
        """Within it, all methods see the same steps."""
        before, self._refreshes = self._refreshes, False
        try:
            yield
        finally:
            self._refreshes = before

    def _take(self, worker: str, record: dict[str, Any]) -> None:
        for name, collection in record.get("collections", {}).items():
            self._collections[name] = Collection(name, **collection)
        if "tensors" in record and self._is_in_range(record["global"]):
            self._take_step(worker, record)
        elif "complete" in record:
            self._complete[worker] = max(self._complete.get(worker, -1), record["complete"])

    def _is_in_range(self, step: int) -> bool:
        first, end = self._range
        return (first is None or step >= first) and (end is None or step < end)

    def _take_step(self, worker: str, record: dict[str, Any]) -> None:
        mode, step = ModeKeys[record["mode"]], record["step"]
        global_step = record["global"]
        self._global_of[mode, step] = global_step
        self._mode_at[global_step] = (mode, step)
        self._workers_at.setdefault(global_step, set()).add(worker)
        self._time_at[global_step] = record["time"]
        self.last_written_s = max(self.last_written_s, record["time"])
        self._complete[worker] = max(self._complete.get(worker, -1), global_step - 1)
        raw = self._files.folder / record["raw"] if "raw" in record else None
        for name, entry in record["tensors"].items():
            tensor = self._tensors.setdefault(name, Tensor(name, self))
            tensor.add(global_step, worker, SavedValue(name, entry, raw))
            self._names_at.setdefault(global_step, set()).add(name)

    # Tensors.

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name.

        Raises:
            TensorUnavailable: it was not saved so far.
        """
        if not self.has_tensor(name):
            raise TensorUnavailable(
                sentences(
                    "tensor-unavailable",
                    f"the trial '{self.name}' has no tensor '{name}'.",
                    "it was not saved in any step so far.",
                    "look at tensor_names(), or include it in the hook's collections.",
                )
            )
        return self._tensors[name]

    def has_tensor(self, name: str) -> bool:
        """Whether it was saved so far."""
        self.refresh()
        return name in self._tensors

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        self.refresh()
        return dict(self._tensors)

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: str | Iterable[str] | None = None,
        collection: str | Collection | None = None,
    ) -> list[str]:
        """The names of tensors of a step, or of all steps of a mode.

        Args:
            step: Of ``mode``; all if None.
            mode: Of the steps.
            regex: Only names in which one of these is found.
            collection: Only those of a collection; not together with ``regex``.

        Raises:
            InvalidArgument: both were passed, or there is no such collection.
        """
        if regex is not None and collection is not None:
            raise InvalidArgument(
                sentences(
                    "debugger-choice",
                    "tensor_names() got a regex and a collection.",
                    "each of them chooses tensors.",
                    "pass one of them.",
                )
            )
        self.refresh()
        names = self._names_of(step, mode)
        if regex is not None:
            names = {name for name in names if Collection("", regex).has(name)}
        elif collection is not None:
            if not isinstance(collection, Collection):
                collection = self.collection(collection)
            names = {name for name in names if collection.has(name)}
        return sorted(names)

    def _names_of(self, step: int | None, mode: ModeKeys) -> set[str]:
        steps = self._steps_of(mode) if step is None else [step]
        every = [self._names_at.get(self._to_global(mode, each), set()) for each in steps]
        return set().union(*every)

    def collections(self) -> dict[str, Collection]:
        """All collections of the hook."""
        self.refresh()
        return dict(self._collections)

    def collection(self, name: str) -> Collection:
        """One of them.

        Raises:
            InvalidArgument: the hook had none of that name.
        """
        self.refresh()
        if name not in self._collections:
            raise no_collection(name, self._collections)
        return self._collections[name]

    def workers(self) -> list[str]:
        """Who has saved."""
        self.refresh()
        return self._files.workers()

    # Steps.

    def modes(self) -> list[ModeKeys]:
        """The modes that have steps, without GLOBAL."""
        self.refresh()
        found = {mode for mode, _ in self._mode_at.values()} - {ModeKeys.GLOBAL}
        return sorted(found, key=lambda mode: mode.value)

    def steps(
        self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False
    ) -> list[int]:
        """The steps that were saved, those alone of which every worker has written all."""
        self.refresh()
        steps = self._steps_of(mode)
        if show_incomplete_steps:
            return steps
        return [step for step in steps if self._is_complete(self._to_global(mode, step))]

    def _steps_of(self, mode: ModeKeys) -> list[int]:
        if mode == ModeKeys.GLOBAL:
            return sorted(self._mode_at)
        return sorted(step for each, step in self._global_of if each == mode)

    def _is_complete(self, global_step: int) -> bool:
        workers = self._files.workers()
        return self.loaded_all_steps or (
            len(workers) >= self._files.workers_of_run
            and all(self._complete.get(worker, -1) >= global_step for worker in workers)
        )

    def _to_global(self, mode: ModeKeys, step: int) -> int:
        return step if mode == ModeKeys.GLOBAL else self._global_of.get((mode, step), -1)

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """The global step that is step ``mode_step`` of ``mode``; None if it was not saved."""
        self.refresh()
        step = self._to_global(mode, mode_step)
        return step if step in self._mode_at else None

    def mode_step(self, global_step: int) -> int | None:
        """The step within its mode that is a global step; None if it was not saved."""
        self.refresh()
        return self._mode_at[global_step][1] if global_step in self._mode_at else None

    def mode(self, global_step: int) -> ModeKeys | None:
        """The mode of a global step; None if it was not saved."""
        self.refresh()
        return self._mode_at[global_step][0] if global_step in self._mode_at else None

    def time_of(self, global_step: int) -> float | None:
        """When a step was written, in seconds since the epoch; None if it was not saved."""
        self.refresh()
        return self._time_at.get(global_step)

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Whether a step can be read, will be, or never will."""
        self.refresh()
        steps = self._steps_of(mode)
        place = bisect.bisect_left(steps, step)
        if place == len(steps):
            ended = self.loaded_all_steps
            return StepState.UNAVAILABLE if ended else StepState.NOT_YET_AVAILABLE
        if steps[place] != step:
            return StepState.UNAVAILABLE
        is_complete = self._is_complete(self._to_global(mode, step))
        return StepState.AVAILABLE if is_complete else StepState.NOT_YET_AVAILABLE

    def wait_for_steps(
        self, required_steps: Iterable[int], mode: ModeKeys = ModeKeys.GLOBAL
    ) -> None:
        """Return when the training has written these steps.

        Raises:
            StepUnavailable: one of them was not saved.
            NoMoreData: the training has ended before.
        """
        for step in required_steps:
            while (state := self.has_passed_step(step, mode)) == StepState.NOT_YET_AVAILABLE:
                time.sleep(_POLL_S)
            if state == StepState.UNAVAILABLE:
                raise self.no_step(step, mode, state)

    def no_step(self, step: int, mode: ModeKeys, state: StepState) -> Error:
        """What is raised for a step that is not there."""
        last = max(self._steps_of(mode), default=-1)
        if state == StepState.NOT_YET_AVAILABLE:
            return StepNotYetAvailable(
                sentences(
                    "step-not-yet-available",
                    f"step {step} of mode {mode.name} is not there yet.",
                    f"the last step that was written so far is {last}.",
                    "call wait_for_steps().",
                ),
                step=step,
                mode=mode,
            )
        if step > last:
            return NoMoreData(
                sentences(
                    "no-more-data",
                    f"step {step} of mode {mode.name} was not written.",
                    f"the training has ended; its last saved step is {last}.",
                    "look at steps().",
                ),
                step=step,
                mode=mode,
            )
        return StepUnavailable(
            sentences(
                "step-unavailable",
                f"step {step} of mode {mode.name} was not saved.",
                "the hook's SaveConfig leaves it out.",
                "look at steps(), or save more steps.",
            ),
            step=step,
            mode=mode,
        )
