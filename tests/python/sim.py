# SPDX-License-Identifier: Apache-2.0
"""The simulated accelerator of tests/support/simulated_device as torch's device "sim".

`load()` registers it, and this module as torch.sim, in the calling process and for good: tests call
it in processes of ranks.run().
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks

BUILD = Path(__file__).parents[2] / os.environ.get("FARANDOLE_BUILD", "build/release")
DEVICE = BUILD / "tests" / "libfarandole_simulated_device.so"
LIBRARY = BUILD / "tests" / "libfarandole_simulated_torch.so"
# Built where nccl.h is.
NCCL = BUILD / "tests" / "libfarandole_simulated_nccl.so"
NEEDS_NCCL = pytest.mark.skipif(not NCCL.exists(), reason="built without nccl.h: no simulated NCCL")
ALL_SCHEDULES = ["eager", "lazy", "slow_default", "slow_side"]
# Those that tests run under: a list of names, or all.
SCHEDULES = os.environ.get("FARANDOLE_TEST_SCHEDULES", "").split() or ALL_SCHEDULES


def backends(*schedules: str) -> list[Any]:
    """Of ranks.Setup, as parameters of a test."""
    return [pytest.param("sim-" + schedule, marks=NEEDS_NCCL) for schedule in schedules]


def load() -> None:
    if hasattr(torch, "sim"):
        return
    ctypes.CDLL(str(DEVICE), mode=ctypes.RTLD_GLOBAL)  # groups look up functions by name there
    torch.ops.load_library(LIBRARY)
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


@contextlib.contextmanager
def schedule(name: str) -> Iterator[None]:
    """Loads the device and runs the body under a schedule; fails if it had a race."""
    load()
    torch.ops.farandole_sim.set_schedule(ALL_SCHEDULES.index(name))
    yield
    for device in range(device_count()):
        synchronize(device)
    reports = take_reports()
    assert not reports, "\n".join(reports)


@contextlib.contextmanager
def of_rank(rank: int, name: str, nccl: Path | None = NCCL) -> Iterator[None]:
    """The same, with the device of a rank, for which groups use this NCCL; None: as is set."""
    if nccl is not None:
        os.environ["FARANDOLE_NCCL_LIBRARY"] = str(nccl)
    capability = torch.distributed.Backend.backend_capability["farandole"]
    with schedule(name):
        set_device(rank)
        if "sim" not in capability:
            capability.append("sim")
        yield


def take_reports() -> list[str]:
    """The races that were found since the last call."""
    return torch.ops.farandole_sim.take_reports()


def throw_races(throws: bool) -> None:
    """Whether an operation with a race raises RuntimeError, or is only reported."""
    torch.ops.farandole_sim.throw_races(throws)


def let_go() -> None:
    """Frees earlier models before a test counts or forbids waits.

    The release of their buckets waits for the device.

    Their last owner may be an operation that the watchdog, which looks every 50 ms, still has.
    """
    gc.collect()
    time.sleep(0.3 * ranks.load())


def take_waiting_operators() -> list[str]:
    """The operators that had to wait for the device since the last call, and why."""
    return torch.ops.farandole_sim.take_waiting_operators()


def host_waits() -> int:
    """How often this process has waited for the device."""
    return torch.ops.farandole_sim.host_waits()


def take_stream_waits() -> list[str]:
    """The waits of streams for events since the last call: "1 for 0", by numbers of streams."""
    return torch.ops.farandole_sim.take_stream_waits()


def leave_out_wait_after(others: int) -> None:
    """Seeds a fault: the wait that follows after so many others is left out."""
    torch.ops.farandole_sim.leave_out_wait_after(others)


def fail(reason: str, device: int = 0) -> None:
    """Makes a device fail as a GPU does after an illegal access."""
    torch.ops.farandole_sim.fail(device, reason)


def reset(device: int = 0) -> None:
    torch.ops.farandole_sim.reset(device)


# What torch expects of torch.<device>.


class Graph:
    """As torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.captured = torch.classes.farandole_sim.Graph()

    def replay(self) -> None:
        self.captured.replay()


@contextlib.contextmanager
def graph(graph: Graph, stream: torch.Stream | None = None) -> Iterator[None]:
    """As torch.cuda.graph: captures what the body puts on the current stream."""
    synchronize()
    let_go()  # else the watchdog may free symmetric memory in the capture, and wait for the device
    with stream or Stream():
        graph.captured.begin()
        try:
            yield
        finally:
            graph.captured.end()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _lazy_init() -> None:
    """Without it torch.accelerator.synchronize() returns at once."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return torch.ops.farandole_sim.device_count()


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: int) -> None:
    torch.accelerator.set_device_index(device)


def synchronize(device: int | None = None) -> None:
    torch.accelerator.synchronize(device)


def current_stream(device: int | None = None) -> torch.Stream:
    return torch.accelerator.current_stream(device)


def stream(stream: torch.Stream) -> torch.Stream:
    return stream


def Stream(device: int | None = None, priority: int = 0) -> torch.Stream:  # noqa: N802
    index = current_device() if device is None else device
    return torch.Stream(torch.device("sim", index), priority=priority)


def Event(**options: Any) -> torch.Event:  # noqa: N802
    return torch.Event("sim", **options)


@contextlib.contextmanager
def device(index: int) -> Iterator[None]:
    before = current_device()
    set_device(index)
    try:
        yield
    finally:
        set_device(before)


def manual_seed_all(seed: int) -> None:
    torch.ops.farandole_sim.seed_all(seed & (2**63 - 1))


manual_seed = manual_seed_all


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]
