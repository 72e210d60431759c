# SPDX-License-Identifier: Apache-2.0
"""Leaves out the test files that need a newer torch, and cleans up after each test.

There are two tiers of tests: tests with the mark `system` may start programs, other tests may not.
Files are distributed among the workers, the longest first.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import ProcessGroup

import documented_errors

SINCE_2_15 = ["test_hooks.py", "test_reconfigure.py", "test_windows.py"]

collect_ignore = [] if hasattr(ProcessGroup, "new_window") else SINCE_2_15

# Seconds that the longest files take on 2 cores. The next free worker takes a whole file, or a
# single test of a file in SPLIT, whose tests share nothing that is slow to create.
SECONDS = {
    "test_training_examples.py": 261,
    "test_spark.py": 220,
    "test_benchmark.py": 159,
    "test_hosts.py": 125,
    "test_run_function.py": 117,
    "test_zero_training.py": 116,
    "test_cpp_examples.py": 96,
    "test_run.py": 96,
    "test_nccl_plugin.py": 92,
    "test_checkpoint_cpp.py": 90,
    "test_zero_whole.py": 77,
    "test_mpi.py": 73,
    "test_elastic.py": 69,
    "test_launchers.py": 68,
    "test_zero_state.py": 60,
    "test_torch_state_dict.py": 60,
    "test_demo.py": 60,
    "test_horovodrun.py": 60,
    "test_gpu_check.py": 54,
    "test_cmake_project.py": 51,
    "test_checkpoint.py": 51,
    "test_published_scripts.py": 50,
    "test_grad_scaler.py": 49,
    "test_ddp_frozen.py": 47,
    "test_zero_steps.py": 41,
    "test_ddp_backward.py": 32,
    "test_born_gradients.py": 30,
    "test_checkpoint_of_torch.py": 25,
    "test_amp_training.py": 24,
    "test_zero_devices.py": 23,
}
SPLIT = {"test_ddp_frozen.py", "test_ddp_backward.py", "test_checkpoint_failures.py"}
ALONE = "test_planted_host_faults.py"  # `make check-system` runs it by itself
# Programs that a test without the mark may start: each takes about a millisecond.
SMALL_PROGRAMS = ("sh", "true", "sleep", "ip", "tc", "fc-list", "git", "readelf", "nm")

# A shell's background jobs ignore SIGINT, and what they start does too; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

documented_errors.compare_all()

_running: pytest.Item | None = None
_refusal = ""


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    """The name of the program that an event of sys.audit() starts; "" for other events."""
    if event == "os.system":
        return Path(os.fsdecode(arguments[0]).strip().partition(" ")[0]).name
    if event in ("subprocess.Popen", "os.posix_spawn"):
        return Path(os.fsdecode(arguments[0] or arguments[1][0])).name
    return ""


def _refuse_programs(event: str, arguments: tuple[Any, ...]) -> None:
    global _refusal
    if _running is None or _running.get_closest_marker("system"):
        return
    program = _program(event, arguments)
    if program and program not in SMALL_PROGRAMS:
        _refusal = (
            f"a test without the mark `system` starts {program}.\n"
            "why: `make test` leaves out tests that start programs, which take seconds each.\n"
            "fix: mark it with @pytest.mark.system, or call the code in the test or in its ranks."
        )
        raise RuntimeError(_refusal)


sys.addaudithook(_refuse_programs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _running
    _running = item
    try:
        return (yield)
    finally:
        _running = None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: -SECONDS.get(item.path.name, 0))
    for item in items:
        if item.get_closest_marker("alone") and item.path.name != ALONE:
            raise pytest.UsageError(
                f"{item.nodeid} has the mark `alone`, which is for {ALONE} only"
            )
        if item.path.name not in SPLIT:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # else each full collection looks at thousands of tests, for 0.3 s


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Files share a process, in any order."""
    global _refusal
    before = dict(os.environ)
    _refusal = ""
    yield
    os.environ.clear()
    os.environ.update(before)
    if dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("this test leaves a process group behind")
    if _refusal:
        pytest.fail(_refusal)  # the test may have caught the error
