# SPDX-License-Identifier: Apache-2.0
"""The rank that all others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.profiler.common_steps import CommonSteps
from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.rules.throttling import crowding_of, disk_waits_of, throttling_of
from farandole.profiler.steps import RankSteps
from farandole.profiler.system_metrics import Floats


@dataclass(frozen=True, kw_only=True)
class Straggler(ProfilerRule):
    """Fires if one rank's own work takes longer, or it comes later to collectives, than others'.

    Ranks wait for each other in each backward, so their steps take equally long. What a rank does
    without the others does not: waits for data, forward, backward, optimizer.
    """

    threshold: float = 10
    """Percent of a step by which the rank holds up the others."""
    patience: int = 20
    """How many steps of all ranks are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge steps of training that all ranks have recorded, by medians."""
        steps = CommonSteps(profile.steps())
        if len(steps.ranks) < 2:
            return self._no_data(f"{len(steps.ranks)} ranks have recorded steps; it takes two.")
        if len(steps) <= self.patience:
            return self._no_data(
                f"all ranks have {len(steps)} steps together; it takes more than {self.patience}.",
                datapoints=len(steps),
            )
        loop_us = steps.loop_us()
        data = np.median(steps.part("data"), axis=1)
        compute = np.median(steps.of(lambda rank: rank.compute_us), axis=1)
        exposed = np.median(steps.part("communication"), axis=1)
        excess = _excess(data + compute)
        slowest = int(excess.argmax())
        figures = {
            "step_ms": plain(loop_us / 1e3),
            "ranks": {
                f"rank {rank.rank}": {
                    "data_ms": plain(data[i] / 1e3),
                    "compute_ms": plain(compute[i] / 1e3),
                    "exposed_communication_ms": plain(exposed[i] / 1e3),
                }
                for i, rank in enumerate(steps.ranks)
            },
        }
        if 100 * excess[slowest] / loop_us > self.threshold:
            is_compute = bool(_excess(compute)[slowest] >= _excess(data)[slowest])
            late_percent = 100 * float(data[slowest]) / loop_us
            cause, evidence = _cause(profile, steps.ranks[slowest], is_compute, late_percent)
            return self._name(steps, slowest, excess[slowest], cause, evidence, figures)
        latest = _latest(profile, steps)
        held_up_us = 0.0 if latest is None else -float(_excess(exposed)[latest])
        if latest is not None and 100 * held_up_us / loop_us > self.threshold:
            return self._name(steps, latest, held_up_us, "communication", "", figures)
        return self._quiet(
            "no rank holds up the others for long.", datapoints=len(steps), figures=figures
        )

    def _name(
        self,
        steps: CommonSteps,
        index: int,
        held_up_us: float,
        cause: str,
        evidence: str,
        figures: dict[str, Any],
    ) -> RuleReport:
        percent = 100 * held_up_us / steps.loop_us()
        rank = steps.ranks[index]
        where = f"rank {rank.rank} on {rank.node}"
        why = f"{cause} ({evidence})" if evidence else cause
        figures |= {"rank": rank.rank, "cause": cause, "percent": plain(percent)}
        return self._fired(
            f"{where} holds up the others by {percent:.0f} % of a step; the cause is {why}.",
            _ADVICE[cause],
            triggered=len(steps),
            datapoints=len(steps),
            figures=figures,
        )


_ADVICE = {
    "data": "look at this rank's loader: its files, its disk, its num_workers, the cores it has.",
    "compute": "give this rank less work or a faster machine; look for other processes on its "
    "cores or GPU, extra work of this rank such as logging, and its longer sequences.",
    "communication": "its own work takes no longer than that of others: look at the network of its "
    "host, and at what it does between steps.",
    "a throttled machine": "look at cooling, power limits and the quota of its cgroup, or leave "
    "this machine out.",
}


def _cause(
    profile: Profile, rank: RankSteps, is_compute: bool, late_percent: float
) -> tuple[str, str]:
    """And what of its host shows it, if anything does."""
    if not is_compute:
        return "data", disk_waits_of(profile, rank.node, late_percent)
    throttling = throttling_of(profile, rank.rank)
    if throttling:
        return "a throttled machine", throttling
    return "compute", crowding_of(profile, rank.node)


def _excess(times: Floats) -> Floats:
    """By how much each rank is above the median of the others."""
    others = [np.median(np.delete(times, i)) for i in range(len(times))]
    return np.subtract(times, others)


def _latest(profile: Profile, steps: CommonSteps) -> int | None:
    """Of `steps.ranks`, the one that most of the exposed communication waited for, if any."""
    indices = {rank.rank: i for i, rank in enumerate(steps.ranks)}
    waited = np.zeros(len(indices))
    for rank in profile.timeline.ranks():
        spans = rank.spans("communication")
        for latest, us in spans.sums_by("latest_rank", spans.durations_us).items():
            if latest in indices and latest != rank.rank:
                waited[indices[latest]] += us
    if waited.sum() == 0 or waited.max() < 0.6 * waited.sum():
        return None
    return int(waited.argmax())
