# SPDX-License-Identifier: Apache-2.0
"""Hosts with more threads than cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import listed, plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport


@dataclass(frozen=True, kw_only=True)
class HostCpuOversubscribed(ProfilerRule):
    """Fires if threads wait for cores, or a cgroup has used up its quota of them."""

    runnable_threshold: float = 1.5
    """Threads that run or could run, for each core of the host, in the mean."""
    throttled_threshold: float = 5
    """Percent of the quota's periods in which it was used up, in the mean."""
    patience: int = 20
    """How many values of a host are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each host."""
        runnable = profile.metrics.of("RunnableThreadsPerCore")
        datapoints = max((len(series.values) for series in runnable.values()), default=0)
        if datapoints <= self.patience:
            return self._no_data(
                f"{datapoints} values of threads that can run were recorded; it takes more than "
                f"{self.patience}, by farandole.profiler.SystemMonitor.",
                datapoints=datapoints,
            )
        figures: dict[str, dict[str, Any]] = {}
        crowded: list[str] = []
        for metric, series in runnable.items():
            threads = float(series.values.mean())
            quotas = profile.metrics.of("CPUThrottledPercentage", node=metric.node).values()
            throttled = max((float(each.values.mean()) for each in quotas), default=0.0)
            figures[metric.node] = {
                "runnable_threads_per_core": plain(threads),
                "throttled_percent": plain(throttled),
            }
            if threads > self.runnable_threshold or throttled > self.throttled_threshold:
                quota = f", quota used up in {throttled:.0f} % of periods" if throttled else ""
                crowded.append(f"{metric.node} ({threads:.1f} threads for each core{quota})")
        if not crowded:
            what = "there are cores for all threads."
            return self._quiet(what, datapoints=datapoints, figures=figures)
        return self._fired(
            f"threads wait for cores: {listed(crowded)}.",
            "let ranks and workers have fewer threads (OMP_NUM_THREADS, num_workers), bind ranks "
            "to cores with `farandole run`, and look for other programs on the host.",
            triggered=len(crowded),
            datapoints=datapoints,
            figures=figures,
        )
