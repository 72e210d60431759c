# SPDX-License-Identifier: Apache-2.0
"""Whether something of a host slows its ranks down: throttling, other threads, a disk."""

from __future__ import annotations

import numpy as np

from farandole.profiler.probes.gpus import THROTTLED
from farandole.profiler.profile import Profile

_SHARE = 0.1
"""Of the time in which a GPU is slowed down."""
_PERCENT = 5
"""Of periods in which a cgroup has used up its quota, or of time that a host takes."""


_THREADS_PER_CORE = 1.5
_DISK_PERCENT = 20
"""Of the time in which a core or a thread waits for disks."""
_EXPLAINED = 0.6
"""Of the time in which a rank waits for data: the least in which a thread waits for disks."""


def throttling_of(profile: Profile, rank: int) -> str:
    """What slows down the GPU or the cores of this rank's host; empty if nothing is seen."""
    (timeline,) = (each for each in profile.timeline.ranks() if each.rank == rank)
    for metric, series in profile.metrics.of("GPUThrottleReasons", node=timeline.node).items():
        slowed = np.mean((series.values.astype(np.int64) & THROTTLED) != 0)
        if metric.name == f"gpu{timeline.local_rank}" and slowed > _SHARE:
            return f"the driver slowed {metric.name} down for {100 * slowed:.0f} % of the time"
    for dimension, who in (
        ("CPUThrottledPercentage", "its cgroup's quota of cores is used up in"),
        ("CPUStealPercentage", "the hypervisor takes its cores for"),
    ):
        for series in profile.metrics.of(dimension, node=timeline.node).values():
            percent = float(series.values.mean())
            if percent > _PERCENT:
                return f"{who} {percent:.0f} % of the time"
    return ""


def crowding_of(profile: Profile, node: str) -> str:
    """Whether more threads than cores run on a host; empty if not, or if it was not recorded."""
    for series in profile.metrics.of("RunnableThreadsPerCore", node=node).values():
        threads = float(series.values.mean())
        if threads > _THREADS_PER_CORE:
            return f"its host has {threads:.1f} threads for each core"
    return ""


def disk_waits_of(profile: Profile, node: str, late_percent: float) -> str:
    """Whether disks of a host are why ranks wait for data, in this share of time; empty if not."""
    waits = profile.metrics.of("I/OWaitPercentage", node=node).values()
    percent = max((float(series.values.mean()) for series in waits), default=0.0)
    if percent > _DISK_PERCENT:
        return f"a core waits for disks {percent:.0f} % of the time"
    for series in profile.metrics.of("BlockedThreads", node=node).values():
        percent = 100 * float(np.mean(series.values > 0))
        # Those of other programs count too; those of loaders wait as long as the ranks do.
        if percent > max(_DISK_PERCENT, _EXPLAINED * late_percent):
            return f"a thread waits for disks {percent:.0f} % of the time"
    return ""
