# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a host divide its cores. Needs no torch: `rank.py` imports it in each rank."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from farandole import cgroup

_CPUS = Path("/sys/devices/system/cpu")


class Core(NamedTuple):
    """A logical core. The order keeps NUMA nodes and the threads of a physical core together."""

    node: int
    package: int
    physical: int
    """Number of the physical core within its package."""
    number: int
    """As in sched_setaffinity()."""


@dataclass(frozen=True)
class Division:
    """Which cores each local rank may use, and how many threads it should have."""

    sets: tuple[tuple[int, ...], ...]
    """One for each local rank; empty if there are more ranks than cores: none is bound."""
    threads: int
    """The same for every rank; at least 1."""


def allowed_cores() -> list[Core]:
    """The cores of this process's affinity mask, in order."""
    return sorted(_locate(number) for number in os.sched_getaffinity(0))


def quota_cores() -> int | None:
    """How many cores' worth of time the cgroup allows, rounded up; None without a limit."""
    shares = [value.split() for value in cgroup.values("cpu.max")]
    found = [int(quota) / int(period) for quota, period in shares if quota != "max"]
    for quota_us, period_us in zip(
        cgroup.values("cpu.cfs_quota_us"), cgroup.values("cpu.cfs_period_us"), strict=False
    ):
        if int(quota_us) > 0:
            found.append(int(quota_us) / int(period_us))
    return max(1, math.ceil(min(found))) if found else None


def usable_cores() -> int:
    """Cores that may run at the same time: the affinity mask, cut to the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, quota_cores() or allowed)


def divide(cores: list[Core], quota: int | None, ranks: int) -> Division:
    """Gives each of ``ranks`` a disjoint slice of ``cores``; slices differ by one core at most.

    Physical cores are not split between ranks unless there are more ranks than physical cores.
    Threads: one for each physical core of the smallest slice, and within the quota.
    """
    by_physical: dict[tuple[int, int, int], list[int]] = {}
    for core in cores:
        by_physical.setdefault(core[:3], []).append(core.number)
    groups = list(by_physical.values())
    threads = len(groups) // ranks
    if quota is not None:
        threads = min(threads, quota // ranks)
    if ranks > len(groups):
        groups = [[core.number] for core in cores]
    if ranks > len(groups):
        return Division((), 1)
    sets = []
    for rank in range(ranks):
        first, last = (len(groups) * edge // ranks for edge in (rank, rank + 1))
        sets.append(tuple(sorted(core for group in groups[first:last] for core in group)))
    return Division(tuple(sets), max(1, threads))


def divide_this_host(ranks: int) -> Division:
    """`divide` for the cores that this process may use."""
    return divide(allowed_cores(), quota_cores(), ranks)


def describe(division: Division, ranks: int, *, bind: bool, threads: str | None) -> str:
    """One phrase for people, as "cores 0-1 | 2-3, OMP_NUM_THREADS=2".

    Args:
        division: What `divide` gave.
        ranks: How many there are on the host.
        bind: False if ranks may run on any core.
        threads: The user's own OMP_NUM_THREADS, which wins; None if it is not set.
    """
    if not bind:
        place = "not bound to cores"
    elif not division.sets:
        place = f"more ranks ({ranks}) than cores, so none is bound to a core"
    else:
        texts = [text_of(cores) for cores in division.sets]
        if len(texts) > 8:
            texts = [*texts[:3], "...", texts[-1]]
        place = "cores " + " | ".join(texts)
    kept = "" if threads is None else " (as set in the environment)"
    return f"{place}, OMP_NUM_THREADS={threads or division.threads}{kept}"


def text_of(cores: tuple[int, ...]) -> str:
    """As taskset writes it: "0-3,8"."""
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _locate(number: int) -> Core:
    """Where the core is; each is a physical core of one node where the kernel does not say."""
    folder = _CPUS / f"cpu{number}"
    nodes = [int(path.name[4:]) for path in folder.glob("node[0-9]*")]
    try:
        package = int((folder / "topology/physical_package_id").read_text())
        physical = int((folder / "topology/core_id").read_text())
    except (OSError, ValueError):
        package, physical = 0, number
    return Core(min(nodes, default=0), package, physical, number)
