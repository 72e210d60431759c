# SPDX-License-Identifier: Apache-2.0
"""Hosts whose memory fills, slowly and without an end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain, summary
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.system_metrics import Series

_PARTS = 10
"""Of the time, the medians of which are compared."""
_MOST_FALLS = 1
"""From one part to the next, in what still rises."""


@dataclass(frozen=True, kw_only=True)
class HostMemoryLeak(ProfilerRule):
    """Fires if the used memory of a host rises from each tenth of the time to the next. Ours."""

    increase: float = 5
    """Percent of the memory, from the second tenth to the last."""
    patience: int = 200
    """How many values it takes."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each host, without the first tenth, in which a training takes what it needs."""
        metrics = profile.metrics.of("MemoryUsedPercent")
        datapoints = max((len(series.values) for series in metrics.values()), default=0)
        least = max(self.patience, _PARTS)
        hosts = {
            metric.node: series for metric, series in metrics.items() if len(series.values) >= least
        }
        if not hosts:
            return self._no_data(
                f"{datapoints} values of the memory were recorded; it takes {least}.",
                datapoints=datapoints,
            )
        figures: dict[str, Any] = {}
        leaks: dict[str, float] = {}
        for node, series in hosts.items():
            medians = [float(np.median(part)) for part in np.array_split(series.values, _PARTS)][1:]
            rise = medians[-1] - medians[0]
            hours_left = _hours_left(series, rise)
            figures[node] = {"rise": plain(rise), **summary(series.values)}
            falls = sum(after <= before for before, after in itertools.pairwise(medians))
            if rise > self.increase and falls <= _MOST_FALLS:
                leaks[node] = hours_left
                figures[node]["hours_left"] = plain(hours_left)
        if not leaks:
            what = "no host's memory rose all the time."
            return self._quiet(what, datapoints=datapoints, figures=figures)
        node = min(leaks, key=lambda each: leaks[each])
        return self._fired(
            f"the memory of {node} rose by {figures[node]['rise']:g} % and went on rising; at this "
            f"rate it is full in {leaks[node]:.1f} hours.",
            "look for what is kept from step to step: losses with their graphs (take loss.item()), "
            "lists that grow, caches of a dataset in each worker.",
            triggered=len(leaks),
            datapoints=datapoints,
            figures=figures,
        )


def _hours_left(series: Series, rise: float) -> float:
    """Until 100 %, if it goes on as in nine tenths of the time."""
    if rise <= 0:
        return float("inf")
    hours = (series.times[-1] - series.times[0]) * 0.9 / 3600
    return float((100 - series.values[-1]) / rise * hours)
