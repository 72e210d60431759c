# SPDX-License-Identifier: Apache-2.0
"""GPUs with little to do, or with work that comes in bursts."""

from __future__ import annotations

from dataclasses import dataclass

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import NO_GPUS, listed, place, quantile
from farandole.profiler.rules.rule import ProfilerRule, RuleReport


@dataclass(frozen=True, kw_only=True)
class LowGPUUtilization(ProfilerRule):
    """Fires if a GPU's utilization is low, or is high and low in turn."""

    threshold_p95: float = 70
    threshold_p5: float = 10
    window: int = 500
    """How many of the last values are judged."""
    patience: int = 1000
    """How many values of a GPU are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each GPU."""
        gpus = profile.metrics.of("GPUUtilization")
        if not gpus:
            return self._no_data(NO_GPUS)
        datapoints = max(len(series.values) for series in gpus.values())
        if datapoints <= self.patience:
            return self._no_data(
                f"{datapoints} values of a GPU were recorded; it takes more than {self.patience}.",
                datapoints=datapoints,
            )
        figures = {
            place(metric): {
                "gpu_95": quantile(series.values[-self.window :], 0.95),
                "gpu_5": quantile(series.values[-self.window :], 0.05),
            }
            for metric, series in gpus.items()
            if len(series.values) > self.patience
        }
        low = [name for name, found in figures.items() if found["gpu_95"] < self.threshold_p95]
        uneven = [
            name
            for name, found in figures.items()
            if found["gpu_95"] > self.threshold_p95 and found["gpu_5"] < self.threshold_p5
        ]
        if not low and not uneven:
            return self._quiet("GPUs are well used.", datapoints=datapoints, figures=figures)
        phrases = [f"utilization is low: {listed(low)}"] if low else []
        phrases += [f"utilization goes up and down: {listed(uneven)}"] if uneven else []
        return self._fired(
            "; ".join(phrases) + ".",
            "look at what the GPUs wait for: data (Dataloader, CPUBottleneck, IOBottleneck) or "
            "other ranks (Straggler, ExposedCommunication); else use a larger batch.",
            triggered=len(low) + len(uneven),
            datapoints=datapoints,
            figures=figures,
        )
