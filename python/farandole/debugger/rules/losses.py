# SPDX-License-Identifier: Apache-2.0
"""Rules about the losses of training and validation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from farandole.debugger.modes import ModeKeys
from farandole.debugger.rule import Rule
from farandole.debugger.trial import Trial


def mean_loss(trial: Trial, names: Iterable[str], step: int) -> float:
    """The mean of losses over names and workers in a step."""
    values = [
        trial.tensor(name).reduction_value(step, "mean", worker=worker)
        for name in names
        for worker in trial.tensor(name).workers(step)
    ]
    return math.fsum(values) / len(values) if values else math.nan


class LossNotDecreasing(Rule):
    """Fires if a loss has decreased by less than ``diff_percent`` percent in ``num_steps`` steps.

    Steps are those of ``mode``. A loss is compared with its last saved value that is at least
    ``num_steps`` steps back.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        use_losses_collection: bool = True,
        num_steps: int = 10,
        diff_percent: float = 0.1,
        mode: ModeKeys = ModeKeys.GLOBAL,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        losses = ["losses"] if use_losses_collection else []
        self._collections = [*(collection_names or ()), *losses]
        self._regex = tensor_regex
        self._num_steps, self._diff_percent, self._mode = num_steps, diff_percent, mode

    def invoke_at_step(self, step: int) -> bool:
        """Compare each loss with its value before."""
        trial = self.base_trial
        if self._mode not in (ModeKeys.GLOBAL, trial.mode(step)):
            return False
        mode_step = step if self._mode == ModeKeys.GLOBAL else trial.mode_step(step)
        names = self.names(step, collections=self._collections, regex=self._regex)
        for tensor, worker in self.each_worker(names, step):
            earlier = tensor.prev_steps((mode_step or 0) - self._num_steps, 1, self._mode)
            if not earlier:
                continue
            now = tensor.reduction_value(step, "mean", worker=worker)
            before = tensor.reduction_value(earlier[0], "mean", self._mode, worker)
            if not before - now >= self._diff_percent / 100 * abs(before):  # NaN is no decrease
                text = f"went from {before:.4g} in step {earlier[0]} to {now:.4g}"
                self.found(step, text, tensor.name, worker)
        return self.has_found(step)


class _TrainingAndValidation(Rule):
    """Looks at losses of the modes TRAIN and EVAL, which set_mode() tells apart."""

    def __init__(self, base_trial: Trial, tensor_regex: str | None = None, **options: Any) -> None:
        super().__init__(base_trial, **options)
        self._regex = tensor_regex

    def _losses(self, step: int) -> list[str]:
        collections = ["losses"] if self._regex is None else []
        return self.names(step, collections=collections, regex=self._regex)


class Overfit(_TrainingAndValidation):
    """Fires if the validation loss is too far above the training loss, too often.

    Each validation is compared with the training steps since the one before: the ratio is (mean
    validation loss - mean training loss) / mean training loss. It fires when more than
    ``patience`` validations in sequence were above ``ratio_threshold``, from ``start_step`` on.
    """

    def __init__(
        self,
        base_trial: Trial,
        tensor_regex: str | None = None,
        start_step: int = 0,
        patience: int = 1,
        ratio_threshold: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, tensor_regex, **options)
        self._start_step, self._patience, self._ratio = start_step, patience, ratio_threshold
        self._training: list[float] = []
        self._validation: list[float] = []
        self._exceeded = 0  # validations in sequence, without the present one

    def invoke_at_step(self, step: int) -> bool:
        """Add the step's loss, and compare if it is one of a validation."""
        names = self._losses(step)
        if step < self._start_step or not names:
            return False
        loss = mean_loss(self.base_trial, names, step)
        if self.base_trial.mode(step) == ModeKeys.EVAL:
            self._validation.append(loss)
            return self._judge(step, names[0])
        if self._validation:  # the first training step after a validation
            self._exceeded = self._exceeded + 1 if self._is_above() else 0
            self._training, self._validation = [], []
        self._training.append(loss)
        return False

    def _is_above(self) -> bool:
        if not self._training:
            return False
        training = math.fsum(self._training) / len(self._training)
        validation = math.fsum(self._validation) / len(self._validation)
        return validation - training > self._ratio * training

    def _judge(self, step: int, name: str) -> bool:
        if self._is_above() and self._exceeded + 1 > self._patience:
            text = f"of {self._exceeded + 1} validations is above that of training"
            self.found(step, text, name)
        return self.has_found(step)


class Overtraining(_TrainingAndValidation):
    """Fires if neither loss improves any more.

    That is so if the training loss has not improved by ``delta`` for ``patience_train`` saved
    steps, and the validation loss not for ``patience_validation``.
    """

    def __init__(
        self,
        base_trial: Trial,
        patience_train: int = 5,
        patience_validation: int = 10,
        delta: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._patience = {ModeKeys.TRAIN: patience_train, ModeKeys.EVAL: patience_validation}
        self._delta = delta
        self._best = dict.fromkeys(self._patience, math.inf)
        self._waited = dict.fromkeys(self._patience, 0)

    def invoke_at_step(self, step: int) -> bool:
        """Compare the step's loss with the best of its mode."""
        mode, names = self.base_trial.mode(step), self._losses(step)
        if mode not in self._patience or not names:
            return False
        loss = mean_loss(self.base_trial, names, step)
        if loss < self._best[mode] - self._delta:
            self._best[mode], self._waited[mode] = loss, 0
        else:
            self._waited[mode] += 1
        if all(self._waited[each] >= patience for each, patience in self._patience.items()):
            best = " and ".join(f"{loss:.4g} ({mode.name})" for mode, loss in self._best.items())
            self.found(step, f"has not improved on {best}", names[0])
        return self.has_found(step)
