# SPDX-License-Identifier: Apache-2.0
"""Time in which threads wait for disks, as Linux's pressure stall information counts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from farandole.profiler.probes import Reading

_PRESSURE = Path("/proc/pressure/io")


class DiskWaits:
    """Beside the waits of cores, which count only while a core has nothing else to do.

    Nothing is read where the kernel does not count (before Linux 4.20, or with ``psi=0``).
    """

    def __init__(self) -> None:
        self._before_us = _waited_us()

    def read(self, elapsed_s: float) -> Iterator[Reading]:
        """Percent of the time in which at least one thread of the host waited."""
        now_us, before_us = _waited_us(), self._before_us
        self._before_us = now_us
        if now_us is None or before_us is None:
            return
        percent = (now_us - before_us) / 1e4 / elapsed_s
        yield Reading("host", "disks", "IOPressurePercentage", min(100.0, max(0.0, percent)))


def _waited_us() -> int | None:
    """The line is ``some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>``."""
    try:
        first = _PRESSURE.read_text().partition("\n")[0]
    except OSError:
        return None
    return int(first.rpartition("=")[2])
