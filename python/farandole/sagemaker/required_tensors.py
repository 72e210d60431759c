# SPDX-License-Identifier: Apache-2.0
"""What smdebug's rules say that they will look at."""

from __future__ import annotations

from collections.abc import Iterable

from farandole.debugger.trial import Trial
from farandole.debugger.trial_tensor import Tensor


class RequiredTensors:
    """Tensors of trials, and the steps of each that a rule needs."""

    def __init__(self, base_trial: Trial, other_trials: Iterable[Trial] | None = None) -> None:
        self.base_trial = base_trial
        self._steps: dict[Trial, dict[str, list[int]]] = {
            trial: {} for trial in (base_trial, *(other_trials or ()))
        }

    def add(
        self,
        name: str,
        steps: Iterable[int],
        trial: Trial | None = None,
        should_match_regex: bool = False,
    ) -> None:
        """Need ``steps`` of a tensor, or of all whose names match.

        Raises:
            TensorUnavailable: it was not saved so far.
        """
        trial = trial or self.base_trial
        for each in trial.tensor_names(regex=name) if should_match_regex else [name]:
            trial.tensor(each)
            self._steps[trial].setdefault(each, []).extend(steps)

    def get_tensor_steps(self, name: str, trial: Trial | None = None) -> list[int]:
        """The steps of a tensor."""
        return self._steps[trial or self.base_trial][name]

    def get_names(self, trial: Trial | None = None) -> list[str]:
        """The tensors of a trial by their names."""
        return list(self._steps[trial or self.base_trial])

    def get(self, trial: Trial | None = None) -> list[Tensor]:
        """The tensors of a trial."""
        trial = trial or self.base_trial
        return [trial.tensor(name) for name in self._steps[trial]]

    def clear(self) -> None:
        """Need nothing."""
        for needed in self._steps.values():
            needed.clear()

    def fetch(self) -> None:
        """Wait for the steps.

        Raises:
            StepUnavailable: one was not saved.
            TensorUnavailableForStep: it does not have the tensor.
        """
        for trial, needed in self._steps.items():
            trial.wait_for_steps(sorted({step for steps in needed.values() for step in steps}))
            for name, steps in needed.items():
                for step in steps:
                    trial.tensor(name).workers(step)
