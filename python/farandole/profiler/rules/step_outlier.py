# SPDX-License-Identifier: Apache-2.0
"""Steps that take much longer than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain, summary
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.steps import RankSteps

LEAST_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class StepOutlier(ProfilerRule):
    """Fires if more than ``n_outliers`` steps of a rank are longer than the mean by ``stddev``."""

    stddev: float = 3
    """In standard deviations."""
    mode: str | None = None
    """TRAIN or EVAL; both if None."""
    n_outliers: int = 10

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge steps, with the waits for their batches, of each rank and mode."""
        figures: dict[str, Any] = {}
        triggered: dict[str, int] = {}
        datapoints = 0
        for rank in profile.steps():
            for mode in sorted(set(rank.modes)) if self.mode is None else [self.mode]:
                chosen = rank.of_mode(mode)
                datapoints += int(chosen.sum())
                if chosen.sum() <= LEAST_STEPS:
                    continue
                found = self._look(rank, chosen)
                name = f"rank {rank.rank} {mode}"
                figures[name] = found
                if found["number_of_outliers"] > self.n_outliers:
                    triggered[name] = found["number_of_outliers"]
        if not figures:
            return self._no_data(
                f"no rank has more than {LEAST_STEPS} steps of a mode.", datapoints=datapoints
            )
        if not triggered:
            return self._quiet("few steps are outliers.", datapoints=datapoints, figures=figures)
        worst = max(triggered, key=lambda name: triggered[name])
        return self._fired(
            f"{triggered[worst]} steps of {worst} took much longer than the mean; what grew most "
            f"in them is {figures[worst]['cause']}.",
            _ADVICE.get(figures[worst]["cause"], _ADVICE["other work"]),
            triggered=sum(triggered.values()),
            datapoints=datapoints,
            figures=figures,
        )

    def _look(self, rank: RankSteps, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        loop_s = rank.loop_us[chosen] / 1e6
        is_outlier = loop_s > loop_s.mean() + self.stddev * loop_s.std()
        growth = {
            part: plain(_growth(times[chosen], is_outlier) / 1e3)
            for part, times in rank.parts_us.items()
        }
        cause = "other work"
        if is_outlier.any():
            whole = 1e3 * _growth(loop_s, is_outlier)
            part = max(growth, key=lambda name: growth[name])
            if growth["gc"] > 0.5 * whole:  # it is a part of the others
                part = "gc"
            cause = part if growth[part] > 0.3 * whole else cause
        return {
            "step_stats": {"mean": plain(float(loop_s.mean())), **summary(loop_s)},
            "stddev": plain(float(loop_s.std())),
            "number_of_outliers": int(is_outlier.sum()),
            "step_numbers": rank.numbers[chosen][is_outlier].tolist(),
            "growth_ms": growth,
            "cause": cause,
        }


def _growth(times: npt.NDArray[np.float64], is_outlier: npt.NDArray[np.bool_]) -> float:
    """By how much longer this is in outliers than in other steps, in the mean."""
    if not is_outlier.any() or is_outlier.all():
        return 0.0
    return float(times[is_outlier].mean() - times[~is_outlier].mean())


_ADVICE = {
    "gc": "call gc.freeze() before the loop, or gc.disable() and gc.collect() between epochs.",
    "data": "use more workers of the DataLoader and prefetch more; look at slow files.",
    "checkpoint": "save less often, or with asynchronous=True.",
    "communication": "look at which rank the others wait for: Straggler, UnevenShards.",
    "other work": "look at these steps in the timeline: logging, evaluation, changing shapes that "
    "are compiled anew, other processes of the host.",
}
