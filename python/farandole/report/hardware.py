# SPDX-License-Identifier: Apache-2.0
"""What each core, GPU, memory, disk and network did over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import place, plain, quantile
from farandole.profiler.system_metrics import Metric
from farandole.report.time_columns import TimeColumns, rounded


@dataclass(frozen=True)
class _Group:
    """Metrics that are shown side by side."""

    title: str
    unit: str
    names: tuple[str, ...]
    """Dimensions; where metrics of a dimension differ in kind, their names."""
    top: float | None = 100
    """Where the scale ends; at the largest value if None."""


_GROUPS = (
    _Group("Cores", "%", ("CPUUtilization",)),
    _Group("Waits for disks", "%", ("I/OWaitPercentage",)),
    _Group("Threads that wait for a disk", "", ("BlockedThreads",), None),
    _Group("GPUs", "%", ("GPUUtilization",)),
    _Group("Memory of GPUs", "%", ("GPUMemoryUtilization",)),
    _Group("Power of GPUs", "W", ("GPUPowerWatts",), None),
    _Group("Memory of hosts", "%", ("MemoryUsedPercent",)),
    _Group("Threads that run or wait, for each core", "", ("RunnableThreadsPerCore",), None),
    _Group("Periods with the quota of cores used up", "%", ("CPUThrottledPercentage",)),
    _Group("Time that the hypervisor takes", "%", ("CPUStealPercentage",)),
    _Group("Network", "bytes/s", ("ReceiveBytesPerSecond", "TransmitBytesPerSecond"), None),
    _Group(
        "Disks",
        "bytes/s",
        ("ReadThroughputInBytesPerSecond", "WriteThroughputInBytesPerSecond"),
        None,
    ),
    _Group("Operations of disks", "1/s", ("IOPS",), None),
)

_OF_HOSTS = {
    "MemoryUsedPercent": "",
    "ReceiveBytesPerSecond": "received by",
    "TransmitBytesPerSecond": "sent by",
    "ReadThroughputInBytesPerSecond": "read by",
    "WriteThroughputInBytesPerSecond": "written by",
    "IOPS": "",
}
"""Names of metrics of which a host has one, for people."""


def hardware_of(profile: Profile, columns: TimeColumns) -> list[dict[str, Any]]:
    """A group for each kind of metric that was recorded, a row for each core and so on."""
    found = []
    for group in _GROUPS:
        metrics = [each for each in profile.metrics.metrics() if _belongs(each, group)]
        if metrics:
            rows = [_row(profile, metric, columns) for metric in sorted(metrics, key=_order)]
            top = group.top or max(row["max"] for row in rows) or 1.0
            found.append({"title": group.title, "unit": group.unit, "top": top, "rows": rows})
    return found


def _belongs(metric: Metric, group: _Group) -> bool:
    return metric.dimension in group.names or metric.name in group.names


def _order(metric: Metric) -> tuple[str, int, str]:
    """cpu2 comes before cpu10."""
    digits = metric.name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return metric.node, int(digits) if digits.isdecimal() else -1, metric.name


def _place(metric: Metric) -> str:
    """For people."""
    if metric.name not in _OF_HOSTS:
        return place(metric)
    return f"{_OF_HOSTS[metric.name]} {metric.node}".strip()


def _row(profile: Profile, metric: Metric, columns: TimeColumns) -> dict[str, Any]:
    series = profile.metrics.series(metric)
    return {
        "node": metric.node,
        "name": metric.name,
        "place": _place(metric),
        "mean": plain(float(series.values.mean())),
        "p95": quantile(series.values, 0.95),
        "max": plain(float(series.values.max())),
        "columns": rounded(columns.mean(series.times, series.values)),
    }
