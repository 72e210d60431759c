# SPDX-License-Identifier: Apache-2.0
"""Rules about weights: how they begin, and how they change."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.debugger.rule import Rule
from farandole.debugger.rules.losses import mean_loss
from farandole.debugger.trial import Trial

_RANGE_OF_NORMAL = 3.29
"""Standard deviations from the 5th to the 95th percentile of a normal distribution."""


class WeightUpdateRatio(Rule):
    """Fires if weights change too much or too little between two steps.

    The ratio is the l2 norm of the change, divided by that of the weights before plus ``epsilon``.
    It is compared with ``large_threshold`` and ``small_threshold``. The step before is the last
    saved one that is at least ``num_steps`` back; the one before if None. It needs all elements of
    the collection "weights".
    """

    def __init__(
        self,
        base_trial: Trial,
        num_steps: int | None = None,
        large_threshold: float = 10.0,
        small_threshold: float = 1e-8,
        epsilon: float = 1e-9,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._distance = num_steps or 1
        self._large, self._small, self._epsilon = large_threshold, small_threshold, epsilon

    def invoke_at_step(self, step: int) -> bool:
        """Compare each weight with the step before."""
        for tensor, worker in self.each_worker(self.names(step, collections=["weights"]), step):
            earlier = tensor.prev_steps(step - self._distance, 1)
            if not earlier:
                continue
            before = tensor.value(earlier[0], worker=worker)
            change = np.linalg.norm(tensor.value(step, worker=worker) - before)
            ratio = float(change / (np.linalg.norm(before) + self._epsilon))
            if ratio > self._large or ratio < self._small:
                text = f"has changed by {ratio:.3g} of its norm since step {earlier[0]}"
                self.found(step, text, tensor.name, worker)
        return self.has_found(step)


class PoorWeightInitialization(Rule):
    """Fires in the first ``steps`` steps if the weights make a poor start.

    That is so if

    - the largest variance among the weights of the layers, or among the tensors of
      ``activation_inputs_regex``, is more than ``threshold`` times the smallest,
    - the 5th and the 95th percentile of a gradient of weights are less than
      ``distribution_range`` apart (of a gradient without elements: 3.29 standard deviations), or
    - the loss has not decreased for ``patience`` steps.
    """

    def __init__(
        self,
        base_trial: Trial,
        activation_inputs_regex: str = ".*relu_input",
        threshold: float = 10.0,
        distribution_range: float = 0.001,
        patience: int = 5,
        steps: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._activation_inputs = activation_inputs_regex
        self._threshold, self._distribution_range = threshold, distribution_range
        self._patience, self._steps = patience, steps
        self._best_loss = np.inf
        self._steps_without_decrease = 0

    def invoke_at_step(self, step: int) -> bool:
        """Look at variances, gradients and losses."""
        if step >= self._steps:
            return False
        weights = self.names(step, collections=["weights"])
        self._compare_variances(step, [name for name in weights if self._is_matrix(name, step)])
        self._compare_variances(step, self.names(step, regex=self._activation_inputs))
        self._look_at_gradients(step)
        self._look_at_loss(step)
        return self.has_found(step)

    def _is_matrix(self, name: str, step: int) -> bool:
        return len(self.base_trial.tensor(name).shape(step)) > 1

    def _compare_variances(self, step: int, names: list[str]) -> None:
        trial = self.base_trial
        variances = {name: trial.tensor(name).reduction_value(step, "variance") for name in names}
        if not variances:
            return
        high = max(variances, key=lambda name: variances[name])
        low = min(variances, key=lambda name: variances[name])
        if variances[high] > self._threshold * variances[low]:
            text = f"has a variance of {variances[high]:.3g}, '{low}' one of {variances[low]:.3g}"
            self.found(step, text, high)

    def _look_at_gradients(self, step: int) -> None:
        for name in self.names(step, collections=["gradients"]):
            if not self._is_matrix(name, step):
                continue
            tensor = self.base_trial.tensor(name)
            if tensor.has_value(step):
                low, high = np.percentile(tensor.value(step), [5, 95])
                spread = float(high - low)
            else:
                spread = _RANGE_OF_NORMAL * tensor.reduction_value(step, "std")
            if spread < self._distribution_range:
                self.found(step, f"has 90 % of its elements within {spread:.3g}", name)

    def _look_at_loss(self, step: int) -> None:
        names = self.names(step, collections=["losses"])
        if not names:
            return
        loss = mean_loss(self.base_trial, names, step)
        self._steps_without_decrease = (
            0 if loss < self._best_loss else self._steps_without_decrease + 1
        )
        self._best_loss = min(loss, self._best_loss)
        if self._steps_without_decrease >= self._patience:
            text = f"has not decreased for {self._steps_without_decrease} saved steps"
            self.found(step, text, names[0])
