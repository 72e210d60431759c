# SPDX-License-Identifier: Apache-2.0
"""Utilization of each core, and what keeps threads from running: queues, quotas, other machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from farandole import cgroup
from farandole.profiler.probes import Reading

_STAT = Path("/proc/stat")
_IDLE, _IO_WAIT, _STEAL = 3, 4, 7
_STATES = 8
"""Columns of /proc/stat that add up to all time; the two that follow are parts of the first two."""


class Cores:
    """Reads /proc/stat itself: once for all cores and the queues, which psutil does not have."""

    def __init__(self) -> None:
        # Not those of this process's affinity alone: a launcher binds each rank to some.
        self._cores = cgroup.cores()
        self._throttling = _quota_statistics()
        self._times, _, _ = self._read_stat()
        self._periods = self._read_periods()

    def read(self, elapsed_s: float) -> Iterator[Reading]:  # noqa: ARG002
        """Percentages of the time since the last call, of the cores that the cgroup may use."""
        times, runnable, blocked = self._read_stat()
        stolen = total = 0
        for core, now in times.items():
            before = self._times.get(core, now)
            spent = [max(0, new - old) for new, old in zip(now, before, strict=True)]
            ticks = sum(spent)
            if ticks == 0:
                continue
            idle = spent[_IDLE] + spent[_IO_WAIT]
            yield Reading("cpu", core, "CPUUtilization", 100 * (ticks - idle) / ticks)
            yield Reading("cpu", core, "I/OWaitPercentage", 100 * spent[_IO_WAIT] / ticks)
            stolen += spent[_STEAL]
            total += ticks
        self._times = times
        if total:
            yield Reading("host", "cores", "CPUStealPercentage", 100 * stolen / total)
        yield Reading("host", "cores", "RunnableThreadsPerCore", runnable / (os.cpu_count() or 1))
        yield Reading("host", "disks", "BlockedThreads", blocked)
        yield from self._read_throttling()

    def _read_stat(self) -> tuple[dict[str, list[int]], int, int]:
        """Ticks by core and state, how many threads run or could run, and how many wait for I/O."""
        times: dict[str, list[int]] = {}
        threads = {"procs_running": 0, "procs_blocked": 0}
        for line in _STAT.read_text().splitlines():
            name, _, rest = line.partition(" ")
            if name.startswith("cpu") and self._is_ours(name[3:]):
                times[name] = [int(ticks) for ticks in rest.split()[:_STATES]]
            elif name in threads:
                threads[name] = int(rest)
        return times, threads["procs_running"], threads["procs_blocked"]

    def _is_ours(self, number: str) -> bool:
        """Whether a core counts; the first line of /proc/stat, of all cores, has no number."""
        return number != "" and (self._cores is None or int(number) in self._cores)

    def _read_throttling(self) -> Iterator[Reading]:
        """In how many of the quota's periods the cgroup had used it up. Nothing without a quota."""
        if self._throttling is None:
            return
        periods, throttled = self._read_periods()
        new_periods = periods - self._periods[0]
        if new_periods > 0:
            share = 100 * (throttled - self._periods[1]) / new_periods
            yield Reading("host", "cgroup", "CPUThrottledPercentage", share)
        self._periods = periods, throttled

    def _read_periods(self) -> tuple[int, int]:
        if self._throttling is None:
            return 0, 0
        lines = (line.split() for line in self._throttling.read_text().splitlines())
        found = {line[0]: int(line[1]) for line in lines}
        return found.get("nr_periods", 0), found.get("nr_throttled", 0)


def _quota_statistics() -> Path | None:
    """cpu.stat of the nearest cgroup, v2 or v1, that limits the time of cores."""
    for file in cgroup.files("cpu.max"):
        if not file.read_text().startswith("max"):
            return file.with_name("cpu.stat")
    for file in cgroup.files("cpu.cfs_quota_us"):
        if int(file.read_text()) > 0:
            return file.with_name("cpu.stat")
    return None
