# SPDX-License-Identifier: Apache-2.0
"""How much of each host is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import listed, summary, total
from farandole.profiler.rules.rule import ProfilerRule, RuleReport

_AVERAGES = {
    "CPU": "CPUUtilization",
    "GPU": "GPUUtilization",
    "CPU memory": "MemoryUsedPercent",
    "GPU memory": "GPUMemoryUtilization",
    "I/O": "I/OWaitPercentage",
}


@dataclass(frozen=True, kw_only=True)
class OverallSystemUsage(ProfilerRule):
    """Never fires: a table of the use of each host."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Of each host: cores, GPUs, memory, waits for disks, and bytes a second of the network."""
        metrics = profile.metrics
        figures: dict[str, dict[str, Any]] = {}
        for title, dimension in _AVERAGES.items():
            for node in metrics.nodes():
                series = metrics.of(dimension, node=node).values()
                if series:
                    average = total(series) / len(series)
                    figures.setdefault(title, {})[node] = summary(average)
        for node in metrics.nodes():
            series = metrics.of("Algorithm", node=node).values()
            if series:
                figures.setdefault("Network", {})[node] = summary(total(series))
        if not figures:
            return self._no_data("there are no system metrics in this profile.")
        datapoints = max(len(metrics.series(metric).values) for metric in metrics.metrics())
        missing = [title for title in (*_AVERAGES, "Network") if title not in figures]
        what = f"the use of {listed(metrics.nodes())}"
        what += f"; nothing was recorded of: {', '.join(missing)}." if missing else "."
        return self._quiet(what, datapoints=datapoints, figures=figures)
