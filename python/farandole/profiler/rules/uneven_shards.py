# SPDX-License-Identifier: Apache-2.0
"""Batches that differ between ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farandole.profiler.common_steps import CommonSteps
from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport


@dataclass(frozen=True, kw_only=True)
class UnevenShards(ProfilerRule):
    """Fires if in each step another rank has the most work, as with sequences of all lengths."""

    threshold: float = 10
    """Percent of a step by which the rank with the most work is above the mean of ranks."""
    same_rank: float = 75
    """Percent of steps: if one rank has the most work in more of them, it is a Straggler."""
    patience: int = 20
    """How many steps of all ranks are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge forward, backward and optimizer of steps that all ranks have recorded."""
        steps = CommonSteps(profile.steps())
        if len(steps.ranks) < 2 or len(steps) <= self.patience:
            return self._no_data(
                f"{len(steps.ranks)} ranks have {len(steps)} steps together; it takes two ranks "
                f"and more than {self.patience} steps.",
                datapoints=len(steps),
            )
        work = steps.of(lambda rank: rank.compute_us)
        above = 100 * (work.max(axis=0) - work.mean(axis=0)) / steps.loop_us()
        firsts = np.bincount(work.argmax(axis=0), minlength=len(work))
        same_percent = 100 * float(firsts.max()) / len(steps)
        figures = {
            "percent_above_mean": plain(float(above.mean())),
            "steps_with_most_work": {
                f"rank {rank.rank}": int(count)
                for rank, count in zip(steps.ranks, firsts, strict=True)
            },
        }
        what = f"the rank with the most work is {above.mean():.0f} % of a step above the mean"
        if above.mean() <= self.threshold:
            return self._quiet(f"{what}.", datapoints=len(steps), figures=figures)
        if same_percent > self.same_rank:
            return self._quiet(
                f"{what}, and mostly it is rank {steps.ranks[int(firsts.argmax())].rank}: see "
                "Straggler.",
                datapoints=len(steps),
                figures=figures,
            )
        return self._fired(
            f"{what}; it is another one in each step.",
            "give all ranks batches of similar work: DistributedBucketBatchSampler makes them of "
            "similar lengths.",
            triggered=int((above > self.threshold).sum()),
            datapoints=len(steps),
            figures=figures,
        )
