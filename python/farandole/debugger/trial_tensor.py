# SPDX-License-Identifier: Apache-2.0
"""One tensor of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farandole.debugger.exceptions import (
    TensorUnavailableForStep,
)
from farandole.debugger.modes import ModeKeys
from farandole.debugger.reduction_config import NORMS, REDUCTIONS, check_names
from farandole.debugger.saved_value import UNREADABLE, Array, Counts, SavedValue
from farandole.debugger.step_index import StepIndex, StepPlace
from farandole.debugger.step_state import StepState
from farandole.errors import InvalidArgument, sentences

if TYPE_CHECKING:
    from farandole.debugger.trial import Trial


class Tensor:
    """What was saved under one name. ``mode`` says in whose steps ``step_num`` counts.

    Without a ``worker`` the first one that has the tensor is meant. Methods that take a step raise
    StepUnavailable, StepNotYetAvailable, NoMoreData or TensorUnavailableForStep if there is none.
    """

    def __init__(self, name: str, trial: Trial) -> None:
        self.name = name
        self.trial = trial
        self._steps = StepIndex()  # those that have it
        self._saved: dict[int, dict[str, SavedValue]] = {}  # by global step, by worker

    def add(self, global_step: int, place: StepPlace, worker: str, value: SavedValue) -> None:
        """Take what a file has; it replaces what the step had."""
        self._steps.add(global_step, place)
        self._saved.setdefault(global_step, {})[worker] = value

    def steps(
        self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False
    ) -> list[int]:
        """The steps that have it."""
        self.trial.refresh()
        steps = self._steps.steps(mode)
        return steps[: None if show_incomplete_steps else self._complete(mode, len(steps))]

    def prev_steps(
        self, step: int, n: int | None = None, mode: ModeKeys = ModeKeys.GLOBAL
    ) -> list[int]:
        """The last ``n`` steps up to and including ``step`` that have it; all if None."""
        self.trial.refresh()
        end = self._complete(mode, self._steps.up_to(mode, step))
        return self._steps.steps(mode)[0 if n is None else max(end - n, 0) : end]

    def _complete(self, mode: ModeKeys, end: int) -> int:
        """How many of the first ``end`` steps of a mode are written by all workers."""
        steps = self._steps.steps(mode)
        while end > 0 and not self.trial.is_complete(mode, steps[end - 1]):
            end -= 1
        return end

    def workers(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[str]:
        """Who saved it in a step."""
        return sorted(self._of_step(step_num, mode))

    def has_value(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> bool:
        """Whether all elements were saved in a step."""
        return self._find(step_num, mode, worker).has_elements()

    def value(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> Array:
        """All elements; half types as float32."""
        saved = self._find(step_num, mode, worker)
        if not saved.has_elements():
            raise self._unavailable(
                step_num,
                mode,
                "only its reductions were saved",
                "ask for reduction_value(), or save it with ReductionConfig(save_raw_tensor=True).",
            )
        with self._reading_elements(step_num, mode):
            return saved.value()

    def values(
        self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[int, Array]:
        """All elements of every step."""
        steps = self.steps(mode)
        with self.trial.no_refresh():
            return {step: self.value(step, mode, worker) for step in steps}

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002
    ) -> float:
        """A reduction: "min", "max", "mean", "std", "variance", "sum", "prod", "l1" or "l2"."""
        check_names([reduction_name], (*REDUCTIONS, *NORMS))
        saved = self._find(step_num, mode, worker)
        with self._reading_elements(step_num, mode):
            number = saved.reduction(reduction_name, abs)
        if number is None:
            raise self._unavailable(
                step_num,
                mode,
                f"neither {reduction_name} nor its elements were saved",
                "add it to the ReductionConfig of the hook or collection.",
            )
        return number

    def reduction_values(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[tuple[str, bool], float]:
        """The reductions that were saved, by name and whether they are of absolute values."""
        saved = self._find(step_num, mode, worker).reductions()
        return {
            (key.removeprefix("abs_"), key.startswith("abs_")): number
            for key, number in saved.items()
        }

    def counts(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> Counts:
        """How many elements it has, and how many are zero, NaN and Inf."""
        saved = self._find(step_num, mode, worker)
        with self._reading_elements(step_num, mode):
            return saved.counts()

    def shape(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> tuple[int, ...]:
        """Its shape in a step."""
        return self._find(step_num, mode, worker).shape

    def _find(self, step: int, mode: ModeKeys, worker: str | None) -> SavedValue:
        by_worker = self._of_step(step, mode)
        if worker is None:
            worker = min(by_worker)
        if worker not in by_worker:
            raise InvalidArgument(
                sentences(
                    "debugger-worker",
                    f"'{self.name}' was asked for of {worker!r}.",
                    f"in step {step} it was saved by {', '.join(sorted(by_worker))}.",
                    'name one of them; a hook with include_workers="all" saves those of all ranks.',
                )
            )
        return by_worker[worker]

    def _of_step(self, step: int, mode: ModeKeys) -> dict[str, SavedValue]:
        state = self.trial.has_passed_step(step, mode)
        global_step = self._steps.global_step(mode, step)
        if global_step is not None:
            return self._saved[global_step]
        if state == StepState.AVAILABLE:
            raise self._unavailable(
                step, mode, "it was not saved then", f"look at steps({mode}) of the tensor."
            )
        raise self.trial.no_step(step, mode, state)

    @contextmanager
    def _reading_elements(self, step: int, mode: ModeKeys) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            raise self._unavailable(
                step,
                mode,
                f"its elements cannot be read ({type(error).__name__}: {error})",
                "restore the .safetensors file that is beside the lines.",
            ) from error

    def _unavailable(
        self, step: int, mode: ModeKeys, why: str, fix: str
    ) -> TensorUnavailableForStep:
        return TensorUnavailableForStep(
            sentences(
                "tensor-unavailable-for-step",
                f"step {step} of mode {mode.name} does not have what was asked of '{self.name}'.",
                f"{why}.",
                fix,
            ),
            step=step,
            mode=mode,
        )
