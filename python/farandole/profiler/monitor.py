# SPDX-License-Identifier: Apache-2.0
"""What the hardware does while a training runs."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.logs import LOGGER
from farandole.profiler.host_number import number_on_first_rank
from farandole.profiler.metrics_file import MetricsFile
from farandole.start_thread import start_thread

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from farandole.profiler.probes import Probe, Reading

INTERVALS_MS = (100, 200, 500, 1000, 5000, 60000)


class SystemMonitor:
    """Record cores, memory, disks, network and GPUs of this host, in SageMaker's format.

    Every rank may call it: the first of each host records, by a thread, until `stop`, the end of
    the ``with`` block or the end of the process; on the others nothing runs::

        with farandole.profiler.SystemMonitor("profile"):
            train()

    Limits of cgroups are those of the process. A forked child does not record. A late sample is
    left out, not made up for.

    Threads: one at a time.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        interval_ms: int = 500,
        node: int | None = None,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            folder: Files go into ``system/incremental`` below it.
            interval_ms: 100, 200, 500, 1000, 5000 or 60000.
            node: Number of this host, from 1; by default as the default group counts hosts.

        Raises:
            InvalidArgument: another interval, or a host below 1.
            NotSupported: psutil is missing.
        """
        _check(interval_ms, node)
        self._folder = Path(folder)
        self._interval_s = interval_ms / 1000
        self._node = node
        self._thread: threading.Thread | None = None
        self._has_to_end = threading.Event()
        self._owner = os.getpid()
        self.samples = 0
        """Taken since `start`."""
        self.dropped = 0
        """Of these, how many could not be written."""

    def start(self) -> Self:
        """Begin on the first rank of the host. More than once is harmless."""
        if self._thread is not None:
            return self
        number = number_on_first_rank()
        if number is None:
            return self
        self._owner = os.getpid()
        self._has_to_end = threading.Event()
        self._thread = start_thread(
            "farandole-monitor", "the monitor", self._run, f"algo-{self._node or number}"
        )
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """End, with a last sample. More than once, and in a forked child, it is harmless."""
        if self._thread is None or os.getpid() != self._owner:
            return
        self._has_to_end.set()
        self._thread.join()
        self._thread = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, node: str) -> None:
        file = MetricsFile(self._folder, node)
        probes = _probes()
        before = time.monotonic()
        due = before
        is_last = False
        while not is_last:
            due = max(due + self._interval_s, time.monotonic())
            is_last = self._has_to_end.wait(due - time.monotonic())
            now = time.monotonic()
            readings = _read(probes, max(now - before, 1e-3))
            file.write(readings, time.time())
            before = now
            self.samples += 1
            self.dropped = file.dropped
        file.close()


def _check(interval_ms: int, node: int | None) -> None:
    if interval_ms not in INTERVALS_MS:
        raise InvalidArgument(
            sentences(
                "monitor-interval",
                f"SystemMonitor got interval_ms={interval_ms}.",
                "readers of these files know the intervals 100, 200, 500, 1000, 5000 and 60000 ms.",
                "pass one of them.",
            )
        )
    if node is not None and node < 1:
        raise InvalidArgument(
            sentences(
                "monitor-node",
                f"SystemMonitor got node={node}.",
                "hosts are counted from 1; the first is algo-1.",
                "pass the number of this host, or None.",
            )
        )
    if importlib.util.find_spec("psutil") is None:
        raise NotSupported(
            sentences(
                "monitor-psutil",
                "SystemMonitor cannot read memory, disks and network.",
                "psutil is not installed in this Python.",
                "pip install psutil; for NVIDIA GPUs, nvidia-ml-py too.",
            )
        )


def _probes() -> list[Probe]:
    from farandole.profiler.probes.cores import Cores
    from farandole.profiler.probes.disks import Disks
    from farandole.profiler.probes.gpus import Gpus
    from farandole.profiler.probes.memory import Memory
    from farandole.profiler.probes.network import Network

    found: list[Probe] = []
    for make in (Cores, Memory, Disks, Network, Gpus):
        with _logged(make.__name__):
            found.append(make())
    return found


def _read(probes: list[Probe], elapsed_s: float) -> list[Reading]:
    """All values. A probe that fails is not asked again."""
    readings: list[Reading] = []
    for probe in list(probes):
        is_whole = False
        with _logged(type(probe).__name__):
            readings.extend(probe.read(elapsed_s))
            is_whole = True
        if not is_whole:
            probes.remove(probe)
    return readings


@contextlib.contextmanager
def _logged(name: str) -> Iterator[None]:
    """A monitor must not end a training: what the host does not let us read is left out."""
    try:
        yield
    except Exception as error:  # psutil and NVML raise classes of their own
        LOGGER.warning("system monitor: %s are not recorded from now on: %s", name.lower(), error)
