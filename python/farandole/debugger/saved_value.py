# SPDX-License-Identifier: Apache-2.0
"""One tensor of one worker in one step, as it was saved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from farandole.debugger import measures, raw_file
from farandole.debugger.reduction_config import NORMS, REDUCTIONS

Array = NDArray[Any]
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class Counts:
    """How many elements a tensor has, and how many of them are zero, NaN and Inf."""

    size: int
    zeros: int
    nan: int
    inf: int


class SavedValue:
    """What a line of a file has of a tensor.

    What reads elements raises one of UNREADABLE if they are lost or damaged.
    """

    def __init__(self, name: str, entry: dict[str, Any], raw: Path | None) -> None:
        self._name, self._entry, self._raw = name, entry, raw
        self.shape = tuple(entry["shape"])

    def has_elements(self) -> bool:
        """Whether value() can be called."""
        return "value" in self._entry or ("raw" in self._entry and self._raw is not None)

    def value(self) -> Array:
        """All elements; half types as float32."""
        return np.asarray(self._tensor().numpy())

    def _tensor(self) -> torch.Tensor:
        if "value" in self._entry:
            number = self._entry["value"]
            dtype = getattr(torch, self._entry["dtype"])
            number = float(number) if isinstance(number, str) else number  # NaN and Inf
            tensor = torch.tensor(number, dtype=dtype).view(self.shape)
        elif self._raw is not None:
            tensor = raw_file.read(self._raw, self._name)
        else:
            raise KeyError(self._name)
        is_half = tensor.is_floating_point() and tensor.element_size() < 4
        return tensor.float() if is_half else tensor

    def reductions(self) -> dict[str, float]:
        """Those that were saved."""
        return {
            key: float(number)
            for key, number in self._entry.items()
            if key.removeprefix("abs_") in (*REDUCTIONS, *NORMS) and number is not None
        }

    def reduction(self, name: str, absolute: bool) -> float | None:
        """A reduction: saved, or computed of what was saved; None where that cannot be."""
        key = f"abs_{name}" if absolute else name
        saved = self.reductions()
        number = saved.get(key)
        if number is None:
            number = _derived(key, saved, math.prod(self.shape))
        if number is None and self.has_elements() and math.prod(self.shape) > 0:
            (numbers,) = measures.to_numbers([measures.measure(self._tensor(), [key])])
            number = float(numbers[key])
        return number

    def counts(self) -> Counts:
        """Of its elements."""
        entry = self._entry
        if "zeros" not in entry:
            (entry,) = measures.to_numbers([measures.measure(self._tensor(), [])])
        zeros, nan, inf = (int(entry[key]) for key in measures.COUNTS)
        return Counts(math.prod(self.shape), zeros, nan, inf)


def _derived(key: str, saved: dict[str, float], size: int) -> float | None:
    """``key`` as it follows from other reductions."""
    if key == "variance" and "std" in saved:
        return saved["std"] ** 2
    if key == "std" and "variance" in saved:
        return math.sqrt(saved["variance"])
    if key == "sum" and "mean" in saved:
        return saved["mean"] * size
    if key in ("l1", "abs_l1", "abs_sum") and "abs_mean" in saved:
        return saved["abs_mean"] * size
    if key == "abs_l2":
        return saved.get("l2")
    if key == "abs_max" and {"min", "max"} <= saved.keys():
        return max(abs(saved["min"]), abs(saved["max"]))
    return None
