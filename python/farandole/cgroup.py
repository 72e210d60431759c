# SPDX-License-Identifier: Apache-2.0
"""The limits that control groups set for this process, v2 and v1. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def files(name: str) -> Iterator[Path]:
    """The file ``name`` of this process's cgroup, then of each group around it that has one."""
    root = Path("/sys/fs/cgroup")
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        base = root / controllers if controllers else root
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            value = folder / name
            if root in (folder, *folder.parents) and value.is_file():
                yield value


def values(name: str) -> Iterator[str]:
    """What `files` have."""
    return (file.read_text().strip() for file in files(name))


def cores() -> set[int] | None:
    """The cores that processes may be bound to; None if all of the host."""
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
        text = nearest_value(name)
        if text:
            ends = (part.partition("-")[::2] for part in text.split(","))
            return {core for low, high in ends for core in range(int(low), int(high or low) + 1)}
    return None


def nearest_value(name: str) -> str | None:
    """A limit of the nearest cgroup that has one; None without cgroups."""
    return next(values(name), None)
