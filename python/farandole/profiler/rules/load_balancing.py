# SPDX-License-Identifier: Apache-2.0
"""GPUs with more work than others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import NO_GPUS, place, plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.system_metrics import Floats

_EDGES = np.arange(0, 102, 2)


@dataclass(frozen=True, kw_only=True)
class LoadBalancing(ProfilerRule):
    """Fires if the histograms of two GPUs' utilization lie far apart.

    Their distance is the root of the Jensen-Shannon divergence: 0 to 0.83.
    """

    threshold: float = 0.5
    patience: int = 1000
    """How many values of a GPU are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Compare each GPU with each other."""
        gpus = profile.metrics.of("GPUUtilization")
        if not gpus:
            return self._no_data(NO_GPUS)
        datapoints = max(len(series.values) for series in gpus.values())
        histograms = {
            place(metric): np.histogram(series.values, bins=_EDGES)[0].astype(np.float64)
            for metric, series in gpus.items()
            if len(series.values) > self.patience
        }
        if len(histograms) < 2:
            return self._no_data(
                f"{len(histograms)} GPUs have more than {self.patience} values; it takes two.",
                datapoints=datapoints,
            )
        distances = {
            f"{a}, {b}": plain(_distance(histograms[a], histograms[b]))
            for a, b in combinations(histograms, 2)
        }
        apart = [pair for pair, distance in distances.items() if distance > self.threshold]
        figures = {"distances": distances}
        if not apart:
            return self._quiet("GPUs are used evenly.", datapoints=datapoints, figures=figures)
        worst = max(apart, key=lambda pair: distances[pair])
        return self._fired(
            f"GPUs are used unevenly, most of all {worst}.",
            "give each GPU the same work: equal batches, sequences of similar lengths, no extra "
            "work on one rank.",
            triggered=len(apart),
            datapoints=datapoints,
            figures=figures,
        )


def _distance(a: Floats, b: Floats) -> float:
    a, b = a / max(1.0, a.sum()), b / max(1.0, b.sum())
    middle = (a + b) / 2
    divergence = (_entropy(a, middle) + _entropy(b, middle)) / 2
    return float(np.sqrt(max(0.0, divergence)))


def _entropy(a: Floats, middle: Floats) -> float:
    """Of Kullback and Leibler: sum of a log(a / middle)."""
    there = a > 0
    return float(np.sum(a[there] * np.log(a[there] / middle[there])))
