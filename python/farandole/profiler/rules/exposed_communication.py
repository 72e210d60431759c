# SPDX-License-Identifier: Apache-2.0
"""Communication that backward does not hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farandole.profiler.common_steps import CommonSteps
from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport


@dataclass(frozen=True, kw_only=True)
class ExposedCommunication(ProfilerRule):
    """Fires if ranks wait too long after backward, for the network or for other ranks."""

    threshold: float = 10
    """Percent of a step."""
    patience: int = 20
    """How many steps of all ranks are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge steps of training that all ranks have recorded.

        In each step the rank that comes last waits for no other: what it waits is the network's.
        """
        steps = CommonSteps(profile.steps())
        if len(steps.ranks) < 2 or len(steps) <= self.patience:
            return self._no_data(
                f"{len(steps.ranks)} ranks have {len(steps)} steps together; it takes two ranks "
                f"and more than {self.patience} steps.",
                datapoints=len(steps),
            )
        exposed = steps.part("communication")
        loop_us = float(steps.of(lambda rank: rank.loop_us).mean())
        network_us = float(exposed.min(axis=0).mean())
        ranks_us = float(exposed.mean()) - network_us
        percent = 100 * (network_us + ranks_us) / loop_us
        largest = _largest_bucket_percent(profile)
        figures = {
            "percent": plain(percent),
            "step_ms": plain(loop_us / 1e3),
            "for_network_ms": plain(network_us / 1e3),
            "for_ranks_ms": plain(ranks_us / 1e3),
            "possible_speedup": plain(loop_us / max(1.0, loop_us - network_us - ranks_us)),
            "largest_bucket_percent": largest,
        }
        what = (
            f"ranks wait {percent:.0f} % of a step after backward: {network_us / 1e3:.2f} ms for "
            f"the network, {ranks_us / 1e3:.2f} ms for other ranks."
        )
        if percent <= self.threshold:
            return self._quiet(what, datapoints=len(steps), figures=figures)
        return self._fired(
            what,
            _advice(network_us, ranks_us, largest),
            triggered=int((exposed.mean(axis=0) > self.threshold / 100 * loop_us).sum()),
            datapoints=len(steps),
            figures=figures,
        )


def _advice(network_us: float, ranks_us: float, largest_percent: float | None) -> str:
    if ranks_us > network_us:
        return "ranks come at different times: see Straggler and UnevenShards first."
    if largest_percent is not None and largest_percent > 50:
        return "one bucket has most of the gradients: set a smaller bucket_cap_mb."
    return (
        "send less: a communication hook in bfloat16 or with compression, or gradients of several "
        "batches at once with no_sync(); or use larger batches or a faster network."
    )


def _largest_bucket_percent(profile: Profile) -> float | None:
    """Of the bytes of all buckets; None if none was recorded."""
    sizes: dict[str, float] = {}
    for rank in profile.timeline.ranks()[:1]:
        for name, spans in rank.spans("bucket").by_name().items():
            sizes[name] = spans[-1].number("bytes") or 0.0
    whole = sum(sizes.values())
    return plain(100 * float(np.max(list(sizes.values()))) / whole) if whole else None
