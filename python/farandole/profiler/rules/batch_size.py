# SPDX-License-Identifier: Apache-2.0
"""A batch too small for its hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import NO_GPUS, listed, place, quantile, total
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.system_metrics import Metric, Series


@dataclass(frozen=True, kw_only=True)
class BatchSize(ProfilerRule):
    """Fires if cores, a GPU and its memory are all little used: a larger batch would fit."""

    cpu_threshold_p95: float = 70
    gpu_threshold_p95: float = 70
    gpu_memory_threshold_p95: float = 70
    patience: int = 1000
    """How many values of a GPU are there at least."""
    window: int = 500
    """How many of the last are judged."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each GPU with the cores of its host."""
        gpus = profile.metrics.of("GPUUtilization")
        if not gpus:
            return self._no_data(NO_GPUS)
        datapoints = max(len(series.values) for series in gpus.values())
        enough = {
            metric: series
            for metric, series in gpus.items()
            if len(series.values) > max(self.patience, self.window)
        }
        if not enough:
            return self._no_data(
                f"{datapoints} values of a GPU were recorded; it takes more than {self.patience}.",
                datapoints=datapoints,
            )
        figures = {
            place(gpu): found
            for gpu, series in enough.items()
            if (found := self._quantiles(profile, gpu, series)) is not None
        }
        if not figures:
            return self._no_data(
                "cores or memory of the hosts with GPUs were not recorded.", datapoints=datapoints
            )
        small = [name for name, found in figures.items() if self._is_small(found)]
        if not small:
            what = "cores, GPUs or their memory are well used."
            return self._quiet(what, datapoints=datapoints, figures=figures)
        return self._fired(
            f"cores, GPU and memory are little used: {listed(small)}.",
            "use a larger batch, or a smaller machine.",
            triggered=len(small),
            datapoints=datapoints,
            figures=figures,
        )

    def _quantiles(self, profile: Profile, gpu: Metric, series: Series) -> dict[str, Any] | None:
        """None where something else was not recorded."""
        cores = profile.metrics.of("CPUUtilization", node=gpu.node)
        memory = profile.metrics.of("GPUMemoryUtilization", node=gpu.node)
        own_memory = memory.get(gpu._replace(dimension="GPUMemoryUtilization"))
        if not cores or own_memory is None:
            return None
        average = total(cores.values()) / len(cores)
        return {
            "cpu_p95": quantile(average[-self.window :], 0.95),
            "gpu_p95": quantile(series.values[-self.window :], 0.95),
            "gpu_memory_p95": quantile(own_memory.values[-self.window :], 0.95),
        }

    def _is_small(self, found: dict[str, Any]) -> bool:
        return bool(
            found["cpu_p95"] < self.cpu_threshold_p95
            and found["gpu_p95"] < self.gpu_threshold_p95
            and found["gpu_memory_p95"] < self.gpu_memory_threshold_p95
        )
