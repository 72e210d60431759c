# SPDX-License-Identifier: Apache-2.0
"""Trainings that take long to begin."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farandole.profiler.job_summary import job_times
from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport


@dataclass(frozen=True, kw_only=True)
class MaxInitializationTime(ProfilerRule):
    """Fires if the first step comes too late, or has not come yet."""

    threshold: float = 20
    """Minutes."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge the time from the first value or process to the first step."""
        if not profile.timeline.ranks():
            return self._no_data("there is no timeline in this profile.")
        times = job_times(profile)
        has_begun = math.isfinite(times.loop_start_s)
        until = times.loop_start_s if has_begun else times.end_s
        minutes = (until - times.start_s) / 60
        datapoints = sum(len(rank.numbers) for rank in profile.steps())
        figures = {"minutes": plain(minutes), "has_begun": has_begun}
        what = f"the first step {'came' if has_begun else 'has not come'} after {minutes:.1f} min."
        if minutes <= self.threshold:
            return self._quiet(what, datapoints=datapoints, figures=figures)
        return self._fired(
            what,
            "look at what runs before the first step: downloads, preprocessing, compilation, the "
            "start of workers.",
            triggered=1,
            datapoints=datapoints,
            figures=figures,
        )
