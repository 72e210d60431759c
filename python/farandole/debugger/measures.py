# SPDX-License-Identifier: Apache-2.0
"""The numbers that are saved of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COUNTS = ("zeros", "nan", "inf")
"""How many elements are zero, NaN and Inf; always saved."""


def _spread(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Of a sample, as torch; 0 of a single element, of which torch has NaN."""
    return lambda tensor: function(tensor, correction=int(tensor.numel() > 1))


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "min": torch.min,
    "max": torch.max,
    "mean": torch.mean,
    "std": _spread(torch.std),
    "variance": _spread(torch.var),
    "sum": torch.sum,
    "prod": torch.prod,
    "l1": lambda tensor: torch.linalg.vector_norm(tensor, 1),
    "l2": torch.linalg.vector_norm,
    # These need no copy with absolute values.
    "abs_mean": lambda tensor: torch.linalg.vector_norm(tensor, 1) / tensor.numel(),
    "abs_sum": lambda tensor: torch.linalg.vector_norm(tensor, 1),
    "abs_l1": lambda tensor: torch.linalg.vector_norm(tensor, 1),
    "abs_l2": torch.linalg.vector_norm,
}


def measure(tensor: Tensor, keys: Iterable[str]) -> dict[str, Tensor | int | None]:
    """The reductions ``keys`` and the counts of ``tensor``, on its device where it has one.

    Half types are reduced in float32, whole numbers in float64. An empty tensor has no reductions.
    """
    values = _computable(tensor.detach())
    if values.numel() == 0:
        return {**dict.fromkeys(keys), **dict.fromkeys(COUNTS, 0)}
    return {**{key: _reduce(values, key) for key in keys}, **_counts(values)}


def _reduce(values: Tensor, key: str) -> Tensor:
    if key in _FUNCTIONS:
        return _FUNCTIONS[key](values)
    return _FUNCTIONS[key.removeprefix("abs_")](values.abs())


def dense(tensor: Tensor) -> Tensor:
    """Of the same elements; those of a nested tensor in a row."""
    if tensor.is_nested:
        return torch.cat([each.reshape(-1) for each in tensor.unbind()])
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _computable(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = tensor.abs()
    if not tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor.float() if tensor.element_size() < 4 else tensor


def _counts(values: Tensor) -> dict[str, Tensor | int]:
    zeros = values.numel() - torch.count_nonzero(values)
    on_host = values.device.type == "cpu"  # elsewhere a look at a number waits for the device
    if on_host and torch.stack(torch.aminmax(values)).isfinite().all():
        return {"zeros": zeros, "nan": 0, "inf": 0}
    nan, inf = torch.count_nonzero(values.isnan()), torch.count_nonzero(values.isinf())
    return {"zeros": zeros, "nan": nan, "inf": inf}


def to_numbers(measured: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What measure() returned, as numbers; one copy from each device."""
    measured = list(measured)
    by_device: dict[torch.device, list[tuple[dict[str, Any], str]]] = {}
    for each in measured:
        for key, value in each.items():
            if isinstance(value, Tensor):
                by_device.setdefault(value.device, []).append((each, key))
    for places in by_device.values():
        numbers = torch.stack([each[key].to(torch.float64) for each, key in places]).tolist()
        for (each, key), number in zip(places, numbers, strict=True):
            each[key] = int(number) if key in COUNTS else number
    return measured
