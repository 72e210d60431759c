# SPDX-License-Identifier: Apache-2.0
"""Rules about the elements of any tensors.

Each looks at the tensors of ``collection_names`` and of ``tensor_regex``; at all if both are None.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.debugger.rule import Rule
from farandole.debugger.trial import Trial
from farandole.debugger.trial_tensor import Tensor


class _OfChosenTensors(Rule):
    """Looks at each chosen tensor of each worker alone."""

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._collections = list(collection_names or ())
        self._regex = tensor_regex

    def invoke_at_step(self, step: int) -> bool:
        """Look at each tensor of each worker."""
        names = self.names(step, collections=self._collections, regex=self._regex)
        for tensor, worker in self.each_worker(names, step):
            text = self._fault(tensor, worker, step)
            if text:
                self.found(step, text, tensor.name, worker)
        return self.has_found(step)

    @abstractmethod
    def _fault(self, tensor: Tensor, worker: str, step: int) -> str:
        """What is wrong with a tensor; empty if nothing is."""


class AllZero(_OfChosenTensors):
    """Fires if at least ``threshold`` percent of the elements of a tensor are zero."""

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        threshold: float = 100.0,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, collection_names, tensor_regex, **options)
        self._threshold = threshold

    def _fault(self, tensor: Tensor, worker: str, step: int) -> str:
        counts = tensor.counts(step, worker=worker)
        percent = 100.0 * counts.zeros / counts.size if counts.size else 0.0
        is_fault = counts.size > 0 and percent >= self._threshold
        return f"has {percent:.1f} % zeros" if is_fault else ""


class ExplodingTensor(_OfChosenTensors):
    """Fires if a tensor has a NaN or an Inf; with ``only_nan`` only if it has a NaN."""

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        only_nan: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, collection_names, tensor_regex, **options)
        self._only_nan = only_nan

    def _fault(self, tensor: Tensor, worker: str, step: int) -> str:
        counts = tensor.counts(step, worker=worker)
        if counts.nan or (counts.inf and not self._only_nan):
            return f"has {counts.nan} NaN and {counts.inf} Inf among {counts.size} elements"
        return ""


class NonfiniteGradient(ExplodingTensor):
    """Fires if a gradient has a NaN or an Inf, and names the worker."""

    def __init__(self, base_trial: Trial, **options: Any) -> None:
        super().__init__(base_trial, ["gradients"], **options)


class VanishingGradient(_OfChosenTensors):
    """Fires if the mean of the absolute values of a gradient is below ``threshold``."""

    def __init__(self, base_trial: Trial, threshold: float = 1e-7, **options: Any) -> None:
        super().__init__(base_trial, ["gradients"], **options)
        self._threshold = threshold

    def _fault(self, tensor: Tensor, worker: str, step: int) -> str:
        mean = tensor.reduction_value(step, "mean", worker=worker, abs=True)
        return f"has a mean absolute value of {mean:.3g}" if mean < self._threshold else ""


class TensorVariance(_OfChosenTensors):
    """Fires if the variance of a tensor is above ``max_threshold`` or below ``min_threshold``."""

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        max_threshold: float | None = None,
        min_threshold: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, collection_names, tensor_regex, **options)
        self._max, self._min = max_threshold, min_threshold

    def _fault(self, tensor: Tensor, worker: str, step: int) -> str:
        variance = tensor.reduction_value(step, "variance", worker=worker)
        is_high = self._max is not None and variance > self._max
        is_low = self._min is not None and variance < self._min
        return f"has a variance of {variance:.3g}" if is_high or is_low else ""


class UnchangedTensor(_OfChosenTensors):
    """Fires if a tensor was the same in the last ``num_steps`` steps that have it.

    Elements are compared as numpy.allclose() does; if only reductions were saved, these are.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Iterable[str] | None = None,
        tensor_regex: str | None = None,
        num_steps: int = 3,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        equal_nan: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, collection_names, tensor_regex, **options)
        self._num_steps = num_steps
        self._is_close = partial(np.allclose, rtol=rtol, atol=atol, equal_nan=equal_nan)

    def _fault(self, tensor: Tensor, worker: str, step: int) -> str:
        steps = tensor.prev_steps(step, self._num_steps)
        if len(steps) < self._num_steps:
            return ""
        now = _numbers(tensor, worker, step)
        before = [_numbers(tensor, worker, each) for each in steps[:-1]]
        is_same = all(each.shape == now.shape and self._is_close(each, now) for each in before)
        return f"has not changed since step {steps[0]}" if is_same else ""


def _numbers(tensor: Tensor, worker: str, step: int) -> NDArray[Any]:
    """Its elements, or the reductions that there are in place of them."""
    if tensor.has_value(step, worker=worker):
        return tensor.value(step, worker=worker)
    reductions = tensor.reduction_values(step, worker=worker)
    return np.array([reductions[key] for key in sorted(reductions)])
