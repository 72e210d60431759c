# SPDX-License-Identifier: Apache-2.0
"""When a job ran, and how long each of its phases took."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from farandole.profiler.profile import Profile


@dataclass(frozen=True)
class JobTimes:
    """Seconds since 1970. The loop's are infinite where there is no step."""

    start_s: float
    end_s: float
    loop_start_s: float
    loop_end_s: float


def job_times(profile: Profile) -> JobTimes:
    """From the first value, process or span to the last."""
    ranks = profile.timeline.ranks()
    known = list(profile.metrics.time_range() or ())
    for rank in ranks:
        known.append(rank.started_us / 1e6)
        known += [us / 1e6 for us in rank.time_range() or ()]
    steps = profile.steps()
    return JobTimes(
        start_s=min(known, default=math.nan),
        end_s=max(known, default=math.nan),
        loop_start_s=min((rank.starts_us.min() / 1e6 for rank in steps), default=math.inf),
        loop_end_s=max(
            ((rank.starts_us + rank.durations_us).max() / 1e6 for rank in steps), default=math.inf
        ),
    )


def job_summary(profile: Profile) -> dict[str, Any]:
    """As in SageMaker's report; phases are None where no step was recorded."""
    times = job_times(profile)
    duration_s = times.end_s - times.start_s
    has_steps = math.isfinite(times.loop_start_s)
    phases = {
        "initialization": times.loop_start_s - times.start_s,
        "training_loop": times.loop_end_s - times.loop_start_s,
        "finalization": times.end_s - times.loop_end_s,
    }
    found: dict[str, Any] = {
        "start_time": _plain(times.start_s),
        "end_time": _plain(times.end_s),
        "job_duration": _plain(duration_s),
        "training_loop_start": _plain(times.loop_start_s),
        "training_loop_end": _plain(times.loop_end_s),
    }
    for name, seconds in phases.items():
        found[f"{name}_in_seconds"] = _plain(seconds) if has_steps else None
        share = 100 * seconds / duration_s if has_steps and duration_s > 0 else math.nan
        found[f"{name}_in_percent"] = _plain(share)
    return found


def _plain(value: float) -> float | None:
    """JSON has no infinity."""
    return round(float(value), 3) if math.isfinite(value) else None
