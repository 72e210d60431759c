# SPDX-License-Identifier: Apache-2.0
"""What the host receives and sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from farandole.profiler.probes import Reading


class Network:
    """Physical interfaces, so that bridges do not count twice; without any, all but loopback."""

    def __init__(self) -> None:
        names = set(psutil.net_io_counters(pernic=True)) - {"lo"}
        physical = {name for name in names if Path(f"/sys/class/net/{name}/device").exists()}
        self._interfaces = physical or names
        self._before = self._bytes()

    def read(self, elapsed_s: float) -> Iterator[Reading]:
        """Bytes in a second."""
        now, before = self._bytes(), self._before
        self._before = now
        names = ("ReceiveBytesPerSecond", "TransmitBytesPerSecond")
        for name, new, old in zip(names, now, before, strict=True):
            yield Reading("network", name, "Algorithm", max(0, new - old) / elapsed_s)

    def _bytes(self) -> tuple[int, int]:
        counters = psutil.net_io_counters(pernic=True)
        found = [counters[name] for name in self._interfaces if name in counters]
        return sum(each.bytes_recv for each in found), sum(each.bytes_sent for each in found)
