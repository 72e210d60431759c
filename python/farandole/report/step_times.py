# SPDX-License-Identifier: Apache-2.0
"""How long steps took over time, and those that took much longer than the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.profiler.job_summary import job_times
from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain, summary
from farandole.profiler.rules.step_outlier import StepOutlier
from farandole.profiler.steps import RankSteps
from farandole.report.time_columns import TimeColumns, columns_of, rounded

MOST_OUTLIERS = 20
"""That are named one by one, the longest first."""


def step_times_of(profile: Profile) -> dict[str, Any]:
    """Of each rank, in milliseconds; steps of all modes, with the waits for their batches."""
    gaps_s = [np.diff(rank.starts_us) / 1e6 for rank in profile.steps() if len(rank.numbers) > 1]
    interval_s = max((float(np.median(each)) for each in gaps_s), default=1.0)
    columns = columns_of(job_times(profile), interval_s)
    outliers = [each for rank in profile.steps() for each in _outliers(rank)]
    outliers.sort(key=lambda each: -each["ms"])
    return {
        "columns": columns.to_json(),
        "ranks": [_over_time(rank, columns) for rank in profile.steps()],
        "outliers": len(outliers),
        "longest": outliers[:MOST_OUTLIERS],
    }


def _over_time(rank: RankSteps, columns: TimeColumns) -> dict[str, Any]:
    ms = rank.loop_us / 1e3
    starts_s = rank.starts_us / 1e6
    return {
        "rank": rank.rank,
        "steps": len(ms),
        "ms": summary(ms),
        "mean": rounded(columns.mean(starts_s, ms)),
        "longest": rounded(columns.largest(starts_s, ms)),
    }


def _outliers(rank: RankSteps) -> list[dict[str, Any]]:
    """By StepOutlier's default, and the part that is furthest above its median."""
    ms = rank.loop_us / 1e3
    is_outlier = ms > ms.mean() + StepOutlier.stddev * ms.std()
    medians = {part: float(np.median(times)) for part, times in rank.own_us.items()}
    found = []
    for i in np.flatnonzero(is_outlier):
        growth = {part: float(rank.own_us[part][i]) - medians[part] for part in medians}
        part = max(growth, key=lambda name: growth[name])
        named = growth[part] > 0.3 * (rank.loop_us[i] - np.median(rank.loop_us))
        found.append(
            {
                "rank": rank.rank,
                "step": int(rank.numbers[i]),
                "mode": str(rank.modes[i]),
                "time_s": float(rank.starts_us[i] / 1e6),
                "ms": plain(float(ms[i])),
                "grew": part if named else "other work",
            }
        )
    return found
