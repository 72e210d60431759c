# SPDX-License-Identifier: Apache-2.0
"""Moments at which a GPU is idle while something else is busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import NO_GPUS, listed, plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.system_metrics import SystemMetrics, snapshots


@dataclass(frozen=True)
class Bottlenecks:
    """Of all nodes together."""

    datapoints: int
    low_gpu: int
    """Moments at which a GPU was idle."""
    by_node: dict[str, int]
    """Of these, those at which something else was busy."""

    @property
    def percent(self) -> float:
        """Of all moments."""
        return 100 * sum(self.by_node.values()) / self.datapoints if self.datapoints else 0.0


@dataclass(frozen=True, kw_only=True)
class BottleneckRule(ProfilerRule):
    """Fires if GPUs have too often been idle while something else was busy."""

    threshold: float = 50
    """Percent of all moments."""
    gpu_threshold: float = 10
    """Percent of utilization below which a GPU is idle."""
    patience: int = 1000
    """How many moments are judged at least; a training that begins leaves GPUs idle."""

    def _judge(
        self, profile: Profile, dimension: str, busy_above: float, cause: str, advice: str
    ) -> RuleReport:
        """What both rules do."""
        found = find_bottlenecks(profile.metrics, dimension, busy_above, self.gpu_threshold)
        if found is None:
            return self._no_data(NO_GPUS)
        if found.datapoints <= self.patience:
            return self._no_data(
                f"{found.datapoints} moments were recorded; it takes more than {self.patience}.",
                datapoints=found.datapoints,
            )
        count = sum(found.by_node.values())
        figures = {
            "bottlenecks": count,
            "percent": plain(found.percent),
            "low_gpu_utilization": found.low_gpu,
            "by_node": found.by_node,
        }
        what = f"{found.percent:.0f} % of the time a GPU was idle while {cause}"
        if found.percent <= self.threshold:
            return self._quiet(f"{what}.", datapoints=found.datapoints, figures=figures)
        nodes = sorted(found.by_node, key=lambda node: -found.by_node[node])
        return self._fired(
            f"{what}, most often on {listed(nodes)}.",
            advice,
            triggered=count,
            datapoints=found.datapoints,
            figures=figures,
        )


def find_bottlenecks(
    metrics: SystemMetrics, dimension: str, busy_above: float, gpu_below: float
) -> Bottlenecks | None:
    """None without GPUs."""
    datapoints = low_gpu = 0
    by_node: dict[str, int] = {}
    for node in metrics.nodes():
        gpus = metrics.of("GPUUtilization", node=node)
        if not gpus:
            continue
        both = {**gpus, **metrics.of(dimension, node=node)}
        times = np.concatenate([series.times for series in both.values()])
        is_gpu = np.concatenate(
            [np.full(len(series.times), metric in gpus) for metric, series in both.items()]
        )
        values = np.concatenate([series.values for series in both.values()])
        order = np.argsort(times, kind="stable")
        moments = snapshots(times[order])
        count = int(moments[-1]) + 1
        idle = _any_at(moments, (is_gpu & (values < gpu_below))[order], count)
        busy = _any_at(moments, (~is_gpu & (values > busy_above))[order], count)
        datapoints += count
        low_gpu += int(idle.sum())
        by_node[node] = int((idle & busy).sum())
    return Bottlenecks(datapoints, low_gpu, by_node) if by_node else None


def _any_at(
    moments: npt.NDArray[np.int64], holds: npt.NDArray[np.bool_], count: int
) -> npt.NDArray[np.bool_]:
    return np.bincount(moments, weights=holds, minlength=count) > 0
