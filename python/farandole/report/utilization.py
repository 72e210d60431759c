# SPDX-License-Identifier: Apache-2.0
"""How busy cores, GPUs and their memory were: the numbers of a box plot of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import place, quantile, total
from farandole.profiler.system_metrics import Floats

QUANTILES = {"min": 0.0, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


def utilization_of(profile: Profile) -> list[dict[str, Any]]:
    """In percent: the mean of the cores of each host, then each GPU, then the memory of each."""
    return [
        {"place": name, **{key: quantile(values, share) for key, share in QUANTILES.items()}}
        for name, values in _values(profile)
    ]


def _values(profile: Profile) -> Iterator[tuple[str, Floats]]:
    metrics = profile.metrics
    for node in metrics.nodes():
        cores = metrics.of("CPUUtilization", node=node).values()
        if cores:
            yield f"cores of {node}", total(cores) / len(cores)
    for dimension, before in (("GPUUtilization", ""), ("GPUMemoryUtilization", "memory of ")):
        for metric, series in metrics.of(dimension).items():
            yield f"{before}{place(metric)}", series.values
