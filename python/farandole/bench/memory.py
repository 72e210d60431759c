# SPDX-License-Identifier: Apache-2.0
"""The memory of this process: what it has, the most it has had, what training adds to it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

PAUSE_S = 0.002
PROCESS = Path("/proc/self")


def available_bytes() -> int:
    """Of the machine, as the kernel estimates it."""
    return _kib(Path("/proc/meminfo").read_text(), "MemAvailable") * 1024


def share_bytes() -> int:
    """Pages in memory but those of files; what other processes map too is shared out among them."""
    text = (PROCESS / "smaps_rollup").read_text()
    return (_kib(text, "Pss_Anon") + _kib(text, "Pss_Shmem")) * 1024


def resident_bytes() -> int:
    """Pages in memory, shared ones in full."""
    return _kib((PROCESS / "status").read_text(), "VmRSS") * 1024


def most_resident_bytes() -> int:
    """The most that resident_bytes() has been, as the kernel saw it."""
    return _kib((PROCESS / "status").read_text(), "VmHWM") * 1024


def forget_most_resident() -> None:
    """Begins most_resident_bytes() anew."""
    (PROCESS / "clear_refs").write_text("5")


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the kernel does not tell {name}")
    return int(found[1])


class Peak:
    """The most that share_bytes() is while a thread looks, as often as it can; stop() ends it."""

    def __init__(self) -> None:
        self._seen = [share_bytes()]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def bytes(self) -> int:
        """Looks once more, and gives the most."""
        self._seen.append(share_bytes())
        return max(self._seen)

    def forget(self) -> None:
        """Begins anew; what the thread is just looking at goes to the list of before."""
        self._seen = [share_bytes()]

    def stop(self) -> None:
        """Joins the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            self._seen.append(share_bytes())


Steps = tuple[Callable[[], object], Callable[[], object]]  # clears gradients; takes a step


def memory_growth(make: Callable[[], Steps], steps: int) -> dict[str, int]:
    """Bytes beyond those that are there before make(); the first step has what that takes."""
    share, resident = share_bytes(), resident_bytes()
    forget_most_resident()
    peaks = []
    peak = Peak()
    clear, step = make()
    for index in range(steps):
        clear()
        if index:
            peak.forget()
        step()
        peaks.append(peak.bytes() - share)
    peak.stop()
    return {
        "peak_bytes": max(peaks),
        "last_peak_bytes": peaks[-1],
        "steady_bytes": share_bytes() - share,  # with gradients of the last step
        "resident_bytes": most_resident_bytes() - resident,
    }
