# SPDX-License-Identifier: Apache-2.0
"""What ranks and hosts did in the last seconds that were recorded."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.steps import RankSteps
from farandole.profiler.timeline import RankTimeline

WINDOW_S = 30
_FILE_S = 60
"""How long a file is written to before the next one begins."""


@dataclass(frozen=True)
class RankNow:
    """The last steps of a rank."""

    rank: int
    node: str
    steps_per_s: float
    step: int
    """The number of the last one."""
    percent: dict[str, float]
    """Of each of `steps.PARTS`, and "other"."""
    waits_for: int | None
    """The rank that most of its waiting was for."""


@dataclass(frozen=True)
class HostNow:
    """The last values of a host, in percent; None where it has no such metric."""

    node: str
    core_count: int
    cores: float | None
    io_wait: float | None
    memory: float | None
    gpu_count: int
    gpus: float | None
    gpu_memory: float | None


@dataclass(frozen=True)
class Now:
    """All ranks and hosts, and how many seconds after 1970 the last was written."""

    ranks: list[RankNow]
    hosts: list[HostNow]
    written_s: float | None


def now_of(folder: str) -> Now:
    """Read the newest files of a folder.

    Raises:
        InvalidArgument: there is no such folder.
    """
    written_s = _written_s(Path(folder))
    since_s = 0.0 if written_s is None else written_s - WINDOW_S - _FILE_S
    profile = Profile(folder, written_since_s=since_s)
    steps = {each.rank: each for each in profile.steps()}
    ends_us = [float((each.starts_us + each.durations_us).max()) for each in steps.values()]
    start_us = max(ends_us, default=0.0) - 1e6 * WINDOW_S
    ranks = [
        _rank(timeline, steps[timeline.rank], start_us)
        for timeline in profile.timeline.ranks()
        if timeline.rank in steps
    ]
    return Now(ranks, [_host(profile, node) for node in profile.metrics.nodes()], written_s)


def _written_s(folder: Path) -> float | None:
    """When the newest file was written."""
    times = []
    for path in folder.glob("*/*/*/*.json*"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            times.append(path.stat().st_mtime)
    return max(times, default=None)


def _rank(timeline: RankTimeline, steps: RankSteps, start_us: float) -> RankNow:
    chosen = steps.starts_us >= start_us
    if not chosen.any():  # it stands still
        return RankNow(steps.rank, steps.node, 0.0, int(steps.numbers[-1]), {}, None)
    ends_us = steps.starts_us + steps.durations_us
    loop_us = float(steps.loop_us[chosen].sum())
    whole_us = max(1.0, loop_us)
    percent = {part: 100 * float(us[chosen].sum()) / whole_us for part, us in steps.own_us.items()}
    percent["other"] = max(0.0, 100 - sum(percent.values()))
    passed_us = float(ends_us[chosen].max() - (steps.starts_us[chosen].min()))
    return RankNow(
        rank=steps.rank,
        node=steps.node,
        steps_per_s=1e6 * int(chosen.sum()) / max(1.0, passed_us),
        step=int(steps.numbers[-1]),
        percent=percent,
        waits_for=_waits_for(timeline, start_us),
    )


def _waits_for(timeline: RankTimeline, start_us: float) -> int | None:
    spans = timeline.spans("communication")
    spans = spans.where(spans.starts_us >= start_us)
    waited_us = spans.sums_by("latest_rank", spans.durations_us)
    others = [rank for rank in waited_us if rank >= 0 and rank != timeline.rank]
    return max(others, key=lambda rank: waited_us[rank], default=None)


def _host(profile: Profile, node: str) -> HostNow:
    def mean(dimension: str) -> float | None:
        series = profile.metrics.of(dimension, node=node).values()
        recent = [each.values[each.times >= each.times[-1] - WINDOW_S] for each in series]
        return float(np.mean([values.mean() for values in recent])) if recent else None

    return HostNow(
        node=node,
        core_count=len(profile.metrics.of("CPUUtilization", node=node)),
        cores=mean("CPUUtilization"),
        io_wait=mean("I/OWaitPercentage"),
        memory=mean("MemoryUsedPercent"),
        gpu_count=len(profile.metrics.of("GPUUtilization", node=node)),
        gpus=mean("GPUUtilization"),
        gpu_memory=mean("GPUMemoryUtilization"),
    )
