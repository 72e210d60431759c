# SPDX-License-Identifier: Apache-2.0
"""Reads what hooks have saved, also while the training goes on."""

from __future__ import annotations

import math
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
from farandole.debugger.saved_collection import SavedCollection
from farandole.debugger.saved_value import SavedValue
from farandole.debugger.step_index import StepIndex, StepPlace
from farandole.debugger.step_state import StepState
from farandole.debugger.trial_files import TrialFiles, check_folder
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
        NotSupported: smdebug itself has written it.
    """
    return Trial(Path(path), name, range_steps)


class Trial:
    """All steps and tensors of one training. Each call reads what was written meanwhile.

    ``mode`` says in whose steps a step counts. One thread at a time.
    """

    def __init__(
        self, path: Path, name: str | None, range_steps: tuple[int | None, int | None] | None
    ) -> None:
        check_folder(path)
        self.name = name or path.resolve().name
        self.path = path
        self.last_written_s = 0.0
        """When the newest line was written, in seconds since the epoch."""
        self.loaded_all_steps = False
        self._range = range_steps or (None, None)
        self._files = TrialFiles(path / "tensors")
        self._refreshes = True
        self._tensors: dict[str, Tensor] = {}
        self._steps = StepIndex()
        self._names_at: dict[int, set[str]] = {}
        self._complete: dict[str, int] = {}  # by worker: the last step of which all is written
        self._complete_to = -1.0  # of all workers
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
        self.loaded_all_steps = self._files.have_all_ended()
        self._complete_to = self._last_complete_step()

    def _last_complete_step(self) -> float:
        """The last global step of which every worker of the run has written all."""
        workers = self._files.workers()
        if len(workers) < self._files.workers_of_run:
            return math.inf if self.loaded_all_steps else -1
        return min(
            (
                math.inf if self._files.has_ended(worker) else self._complete.get(worker, -1)
                for worker in workers
            ),
            default=-1,
        )

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
            self._collections[name] = SavedCollection(
                name, collection["include_regex"], collection["tensor_names"]
            )
        if "tensors" in record and self._is_in_range(record["global"]):
            self._take_step(worker, record)
        elif "complete" in record:
            self._complete[worker] = max(self._complete.get(worker, -1), record["complete"])

    def _is_in_range(self, step: int) -> bool:
        first, end = self._range
        return (first is None or step >= first) and (end is None or step < end)

    def _take_step(self, worker: str, record: dict[str, Any]) -> None:
        step = record["global"]
        place = StepPlace(ModeKeys[record["mode"]], record["step"], record["time"])
        self._steps.add(step, place)
        self.last_written_s = max(self.last_written_s, place.time_s)
        self._complete[worker] = max(self._complete.get(worker, -1), step - 1)
        raw = self._files.folder / record["raw"] if "raw" in record else None
        for name, entry in record["tensors"].items():
            tensor = self._tensors.setdefault(name, Tensor(name, self))
            tensor.add(step, place, worker, SavedValue(name, entry, raw))
        self._names_at.setdefault(step, set()).update(record["tensors"])

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
        steps = self._steps.steps(mode) if step is None else [step]
        found = [self._steps.global_step(mode, each) for each in steps]
        names = [self._names_at[each] for each in found if each is not None]
        return set().union(*names)

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
        return self._steps.modes()

    def steps(
        self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False
    ) -> list[int]:
        """The steps that were saved, those alone of which every worker has written all."""
        self.refresh()
        steps = self._steps.steps(mode)
        return [step for step in steps if show_incomplete_steps or self.is_complete(mode, step)]

    def is_complete(self, mode: ModeKeys, step: int) -> bool:
        """Whether every worker has written all of a step."""
        global_step = self._steps.global_step(mode, step)
        return global_step is not None and global_step <= self._complete_to

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """The global step that is step ``mode_step`` of ``mode``; None if it was not saved."""
        self.refresh()
        return self._steps.global_step(mode, mode_step)

    def mode_step(self, global_step: int) -> int | None:
        """The step within its mode that is a global step; None if it was not saved."""
        self.refresh()
        place = self._steps.place(global_step)
        return place.step if place else None

    def mode(self, global_step: int) -> ModeKeys | None:
        """The mode of a global step; None if it was not saved."""
        self.refresh()
        place = self._steps.place(global_step)
        return place.mode if place else None

    def time_of(self, global_step: int) -> float | None:
        """When a step was written, in seconds since the epoch; None if it was not saved."""
        self.refresh()
        place = self._steps.place(global_step)
        return place.time_s if place else None

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Whether a step can be read, will be, or never will."""
        self.refresh()
        next_step = self._steps.first_from(mode, step)
        if next_step is None:
            ended = self.loaded_all_steps
            return StepState.UNAVAILABLE if ended else StepState.NOT_YET_AVAILABLE
        if next_step != step:
            return StepState.UNAVAILABLE
        is_complete = self.is_complete(mode, step)
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
        last = max(self._steps.steps(mode), default=-1)
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
