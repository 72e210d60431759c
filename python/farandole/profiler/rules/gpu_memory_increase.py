# SPDX-License-Identifier: Apache-2.0
"""GPUs whose memory fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import NO_GPUS, listed, place, plain, summary
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.system_metrics import Floats


@dataclass(frozen=True, kw_only=True)
class GPUMemoryIncrease(ProfilerRule):
    """Fires if the moving average of a GPU's memory rises too much from one value to the next."""

    increase: float = 5
    """Percent of the GPU's memory."""
    patience: int = 1000
    """How many values come before the first that is judged."""
    window: int = 10
    """How many values the average is of."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each GPU."""
        gpus = profile.metrics.of("GPUMemoryUtilization")
        if not gpus:
            return self._no_data(NO_GPUS)
        datapoints = max(len(series.values) for series in gpus.values())
        if datapoints <= max(self.patience, self.window + 1):
            return self._no_data(
                f"{datapoints} values of a GPU were recorded; it takes more than {self.patience}.",
                datapoints=datapoints,
            )
        figures: dict[str, Any] = {}
        triggered: dict[str, int] = {}
        for metric, series in gpus.items():
            rises = self._rises(series.values)
            count = int((rises > self.increase).sum())
            name = place(metric)
            figures[name] = {
                "increase": plain(float(rises.max(initial=0.0))),
                "percent_in_all": plain(float(series.values[-1] - series.values[0])),
                **summary(series.values),
            }
            if count:
                triggered[name] = count
        if not triggered:
            what = "no GPU's memory rose in a jump."
            return self._quiet(what, datapoints=datapoints, figures=figures)
        return self._fired(
            f"the average of {self.window} values rose by more than {self.increase:g} % at once: "
            f"{listed(list(triggered))}.",
            "look for tensors that are kept from step to step, such as losses with their graphs "
            "(take loss.item()), and for batches of very different sizes.",
            triggered=sum(triggered.values()),
            datapoints=datapoints,
            figures=figures,
        )

    def _rises(self, values: Floats) -> Floats:
        """Of the moving average, from one value to the next, after the first `patience` values."""
        if len(values) <= self.window:
            return np.zeros(0)
        rises = (values[self.window :] - values[: -self.window]) / self.window
        return rises[max(0, self.patience - self.window) :]
