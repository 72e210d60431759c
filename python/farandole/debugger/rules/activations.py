# SPDX-License-Identifier: Apache-2.0
"""Rules about layers that do not let anything through."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.debugger.rule import Rule
from farandole.debugger.trial import Trial


class _InactiveNeurons(Rule):
    """Fires if too many neurons of a layer are active for too few samples of a step."""

    def __init__(
        self, base_trial: Trial, threshold_inactivity: float, threshold_layer: float, **options: Any
    ) -> None:
        super().__init__(base_trial, **options)
        self._threshold_inactivity = threshold_inactivity
        self._threshold_layer = threshold_layer

    @abstractmethod
    def _layers(self, step: int) -> Iterable[str]:
        """The tensors to look at."""

    @abstractmethod
    def _is_active(self, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Of each element of a tensor of that name."""

    def invoke_at_step(self, step: int) -> bool:
        """Look at the neurons of each layer over the samples, which are the first dimension."""
        for tensor, worker in self.each_worker(self._layers(step), step):
            values = tensor.value(step, worker=worker)
            if values.size == 0:
                continue
            active = self._is_active(tensor.name, values)
            active = active.reshape(active.shape[0] if active.ndim > 1 else 1, -1)
            percent_active = 100.0 * active.mean(axis=0)
            percent = 100.0 * np.mean(percent_active < self._threshold_inactivity)
            if percent > self._threshold_layer:
                text = f"has {percent:.1f} % of its neurons inactive"
                self.found(step, text, tensor.name, worker)
        return self.has_found(step)


class DeadRelu(_InactiveNeurons):
    """Fires if more than ``threshold_layer`` percent of the neurons behind a ReLU are dead.

    A neuron is dead in a step if it is above zero for less than ``threshold_inactivity`` percent of
    the samples. It needs all elements of the collection "relu_output", or of ``tensor_regex``.
    """

    def __init__(
        self,
        base_trial: Trial,
        tensor_regex: str | None = None,
        threshold_inactivity: float = 1.0,
        threshold_layer: float = 50.0,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, threshold_inactivity, threshold_layer, **options)
        self._regex = tensor_regex

    def _layers(self, step: int) -> list[str]:
        collections = ["relu_output"] if self._regex is None else []
        return self.names(step, collections=collections, regex=self._regex)

    def _is_active(self, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:  # noqa: ARG002
        return np.asarray(values > 0)


class SaturatedActivation(_InactiveNeurons):
    """Fires if more than ``threshold_layer`` percent of the neurons of a layer are saturated.

    A neuron is saturated if the input of its tanh or sigmoid is within the thresholds of that
    function for less than ``threshold_inactivity`` percent of the samples. It needs all elements of
    "tanh_input" and "sigmoid_input", or of ``tensor_regex``; a name with "sigmoid" is one.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        threshold_tanh_min: float = -9.4999,
        threshold_tanh_max: float = 9.4999,
        threshold_sigmoid_min: float = -23.0,
        threshold_sigmoid_max: float = 16.99999,
        threshold_inactivity: float = 1.0,
        threshold_layer: float = 50.0,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, threshold_inactivity, threshold_layer, **options)
        self._collections = list(collection_names or ())
        self._regex = tensor_regex
        self._tanh = (threshold_tanh_min, threshold_tanh_max)
        self._sigmoid = (threshold_sigmoid_min, threshold_sigmoid_max)

    def _layers(self, step: int) -> list[str]:
        if self._collections or self._regex is not None:
            return self.names(step, collections=self._collections, regex=self._regex)
        return self.names(step, collections=["tanh_input", "sigmoid_input"])

    def _is_active(self, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
        is_sigmoid = "sigmoid" in name or self.base_trial.collection("sigmoid_input").has(name)
        low, high = self._sigmoid if is_sigmoid else self._tanh
        return np.asarray((values >= low) & (values <= high))
