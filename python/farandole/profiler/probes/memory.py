# SPDX-License-Identifier: Apache-2.0
"""Memory in use, of the host or of the cgroup that has less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from farandole import cgroup
from farandole.profiler.probes import Reading


class _Names(NamedTuple):
    """Files of a version of cgroups, and the line of memory.stat that can be dropped at once."""

    limit: str
    usage: str
    droppable: str


_VERSIONS = (
    _Names("memory.max", "memory.current", "inactive_file"),
    _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class Memory:
    """The limit is looked up once: that of the host, or of the tightest cgroup if it is lower."""

    def __init__(self) -> None:
        self._limit_bytes = psutil.virtual_memory().total
        self._group: tuple[Path, _Names] | None = None
        for names in _VERSIONS:
            for file in cgroup.files(names.limit):
                text = file.read_text().strip()
                if text != "max" and int(text) < self._limit_bytes:
                    self._limit_bytes, self._group = int(text), (file.parent, names)

    def read(self, elapsed_s: float) -> Iterator[Reading]:  # noqa: ARG002
        """Percent of what may be used. File caches that can be dropped do not count."""
        if self._group is None:
            percent = psutil.virtual_memory().percent
        else:
            percent = 100 * _working_set_bytes(*self._group) / self._limit_bytes
        yield Reading("memory", "MemoryUsedPercent", "", percent)


def _working_set_bytes(folder: Path, names: _Names) -> int:
    used = int((folder / names.usage).read_text())
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == names.droppable:
            return max(0, used - int(value))
    return used
