# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of all disks together."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from farandole.profiler.probes import Reading


class Disks:
    """Nothing is read where the host shows no disk, as in some containers."""

    def __init__(self) -> None:
        self._before = psutil.disk_io_counters()

    def read(self, elapsed_s: float) -> Iterator[Reading]:
        """Operations and bytes in a second."""
        now, before = psutil.disk_io_counters(), self._before
        self._before = now
        if now is None or before is None:
            return
        operations = now.read_count + now.write_count - before.read_count - before.write_count
        rates = {
            "IOPS": operations,
            "ReadThroughputInBytesPerSecond": now.read_bytes - before.read_bytes,
            "WriteThroughputInBytesPerSecond": now.write_bytes - before.write_bytes,
        }
        for name, count in rates.items():
            yield Reading("i/o", name, "", max(0, count) / elapsed_s)
