# SPDX-License-Identifier: Apache-2.0
"""Ranks that Python's garbage collector stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import listed, plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport


@dataclass(frozen=True, kw_only=True)
class GarbageCollection(ProfilerRule):
    """Fires if Python's collector takes a part of the time of a rank's steps. Ours."""

    threshold: float = 5
    """Percent of the time of all steps."""
    patience: int = 20
    """How many steps it takes."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each rank, without its first step, which has what is done once."""
        steps = [rank for rank in profile.steps() if len(rank.numbers) > max(self.patience, 1)]
        datapoints = sum(len(rank.numbers) for rank in steps)
        if not steps:
            return self._no_data(f"no rank has recorded more than {self.patience} steps.")
        figures: dict[str, Any] = {}
        paused: dict[str, float] = {}
        for rank in steps:
            pauses_us = rank.parts_us["gc"][1:]
            percent = 100 * float(pauses_us.sum()) / max(float(rank.loop_us[1:].sum()), 1.0)
            name = f"rank {rank.rank}"
            figures[name] = {
                "percent": plain(percent),
                "longest_ms": plain(float(pauses_us.max()) / 1e3),
                "steps_with_pauses": int((pauses_us > 0).sum()),
            }
            if percent > self.threshold:
                paused[name] = percent
        if not paused:
            what = "the garbage collector of Python takes little time."
            return self._quiet(what, datapoints=datapoints, figures=figures)
        worst = [f"{name} ({percent:.0f} % of its time)" for name, percent in paused.items()]
        return self._fired(
            f"the garbage collector of Python stops {listed(worst)}.",
            "call gc.freeze() once the training is set up, and gc.collect() on all ranks in the "
            "same step with gc.disable() in between; make fewer objects that stay alive.",
            triggered=len(paused),
            datapoints=datapoints,
            figures=figures,
        )
