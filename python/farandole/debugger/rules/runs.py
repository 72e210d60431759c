# SPDX-License-Identifier: Apache-2.0
"""Rules about whole trainings."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from farandole.debugger.rule import Rule
from farandole.debugger.step_state import StepState
from farandole.debugger.trial import Trial
from farandole.rule_actions import StopTraining

_POLL_S = 0.2


class SimilarAcrossRuns(Rule):
    """Fires if a tensor differs from that of the same name and step in another trial.

    Elements are compared as numpy.allclose() does, or the reductions that both have. It looks at
    ``collection_names`` and ``tensor_regex``; at all tensors if both are None.
    """

    def __init__(
        self,
        base_trial: Trial,
        other_trials: Trial | Iterable[Trial],
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        **options: Any,
    ) -> None:
        others = [other_trials] if isinstance(other_trials, Trial) else [*other_trials]
        super().__init__(base_trial, others, **options)
        self._collections = list(collection_names or ())
        self._regex = tensor_regex

    def invoke_at_step(self, step: int) -> bool:
        """Wait for the step in the other trials, and compare."""
        names = self.names(step, collections=self._collections, regex=self._regex)
        for other in self.other_trials:
            other.wait_for_steps([step])
            for name in sorted({*names} & {*other.tensor_names(step=step)}):
                if not self._is_similar(other, name, step):
                    self.found(step, f"differs from that of '{other.name}'", name)
        return self.has_found(step)

    def _is_similar(self, other: Trial, name: str, step: int) -> bool:
        tensors = [trial.tensor(name) for trial in (self.base_trial, other)]
        if all(tensor.has_value(step) for tensor in tensors):
            first, second = (tensor.value(step) for tensor in tensors)
            return first.shape == second.shape and bool(np.allclose(first, second, equal_nan=True))
        mine, others = (tensor.reduction_values(step) for tensor in tensors)
        keys = sorted(mine.keys() & others.keys())
        return np.allclose([mine[k] for k in keys], [others[k] for k in keys], equal_nan=True)


class StalledTrainingRule(Rule):
    """Fires if nothing was written for ``threshold`` seconds while a step is awaited.

    Afterwards it fires at steps that were written so much later than the step before. With
    ``stop_training_on_fire`` it asks the training to stop, as StopTraining does; only trials
    whose name begins with ``training_job_name_prefix``.
    """

    def __init__(
        self,
        base_trial: Trial,
        threshold: float = 1800.0,
        stop_training_on_fire: bool = False,
        training_job_name_prefix: str | None = None,
        **options: Any,
    ) -> None:
        if stop_training_on_fire:
            options["actions"] = StopTraining(training_job_name_prefix or "")
        super().__init__(base_trial, **options)
        self._threshold_s = threshold
        self._began_s = time.time()
        self._before: tuple[int, float] | None = None  # the last step, and when it was written

    def invoke(self, step: int) -> None:
        """Wait for ``step`` no longer than the training may be silent."""
        trial = self.base_trial
        while trial.has_passed_step(step) == StepState.NOT_YET_AVAILABLE:
            silent_s = time.time() - (trial.last_written_s or self._began_s)
            if silent_s > self._threshold_s:
                self.found(step, f"was awaited in vain for {silent_s:.0f} s")
                self.act(step)
            time.sleep(_POLL_S)
        super().invoke(step)

    def invoke_at_step(self, step: int) -> bool:
        """Compare with the time of the step before."""
        now_s = self.base_trial.time_of(step)
        if now_s is not None and self._before is not None:
            before, before_s = self._before
            if now_s - before_s > self._threshold_s:
                self.found(step, f"came {now_s - before_s:.0f} s after step {before}")
        self._before = (step, now_s) if now_s is not None else self._before
        return self.has_found(step)
