# SPDX-License-Identifier: Apache-2.0
"""Statistics as reports have them: plain numbers, rounded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from farandole.profiler.system_metrics import Floats, Metric, Series

NO_GPUS = "there are no GPU metrics in this profile: no GPU, no driver, or no nvidia-ml-py."


def plain(value: float) -> float:
    """Four significant digits are enough to read."""
    return float(f"{value:.4g}")


def quantile(values: Floats, share: float) -> float:
    """NumPy's, plain."""
    return plain(float(np.quantile(values, share)))


def summary(values: Floats) -> dict[str, float]:
    """The columns of SageMaker's table of system usage."""
    return {
        "max": plain(float(values.max())),
        "p99": quantile(values, 0.99),
        "p95": quantile(values, 0.95),
        "p50": quantile(values, 0.5),
        "min": plain(float(values.min())),
    }


def total(series: Iterable[Series]) -> Floats:
    """Their sum at each time; those that begin later or end earlier cut the others."""
    values = [each.values for each in series]
    shortest = min(map(len, values))
    added = np.zeros(shortest)
    for each in values:
        added += each[-shortest:]
    return added


def place(metric: Metric) -> str:
    """Of a GPU or core, for people."""
    return f"{metric.name} of {metric.node}"


def listed(names: list[str]) -> str:
    """For people: the first four."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
