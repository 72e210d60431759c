# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_* variables: each works, or is named."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import farandole
import horovod.torch as hvd
import pytest
import torch
from farandole.horovod import variables

import ranks
from run_command import DEADLINE_S, environment

PAGE = Path(__file__).parents[2] / "docs" / "horovod.md"


@pytest.mark.system
def test_the_page_has_each_variable() -> None:
    page = PAGE.read_text()
    for name in (*variables._WITH_EFFECT, *variables._WITHOUT_EFFECT):
        build = variables._WITHOUT_EFFECT.get(name) == variables._OF_THE_BUILD
        assert build or f"HOROVOD_{name}" in page or f" _{name}" in page, name


def test_what_means_nothing_is_named() -> None:
    text = variables.told(
        {
            "HOROVOD_CYCLE_TIME": "1",
            "HOROVOD_RANK": "0",
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_FUSION_TRESHOLD": "1",
            "HOROVOD_QQQ": "1",
            "PATH": "x",
        }
    )
    assert text.split(". ") == [
        "HOROVOD_AUTOTUNE has no effect: there is nothing to tune",
        "HOROVOD_FUSION_TRESHOLD is no variable of Horovod 0.28; did you mean "
        "HOROVOD_FUSION_THRESHOLD?",
        "HOROVOD_GPU_OPERATIONS has no effect: it is read when Horovod is built",
        "HOROVOD_QQQ is no variable of Horovod 0.28",
    ]
    assert variables.told({"HOROVOD_AUTOTUNE": "0", "HOROVOD_SIZE": "2"}) == ""


def test_rank_0_says_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    for _ in range(2):
        hvd.init()
        hvd.shutdown()
    said = [each for each in caplog.messages if "HOROVOD_CONTROLLER has no effect" in each]
    assert len(said) == 1


def test_settings_are_taken() -> None:
    found = variables.settings_of(
        {
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CACHE_CAPACITY": "7",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "8",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
        }
    )
    assert (found.cycle_s, found.fusion_bytes, found.capacity) == (0.0025, 0, 7)
    assert (found.stall_warning_s, found.stall_shutdown_s) == (8, 9)
    off = variables.settings_of({"HOROVOD_STALL_CHECK_DISABLE": "1"})
    assert (off.stall_warning_s, off.stall_shutdown_s) == (0, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_CYCLE_TIME", "soon"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_CACHE_CAPACITY", "inf"),
        ("HOROVOD_START_TIMEOUT", "nan"),
        ("HOROVOD_LOG_LEVEL", "loud"),
        ("HOROVOD_THREAD_AFFINITY", "0,1"),
        ("HOROVOD_THREAD_AFFINITY", "4000"),
        ("HOROVOD_THREAD_AFFINITY", "first"),
    ],
)
def test_wrong_values_are_errors(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(farandole.InvalidArgument, match=f"{name} is '{value}'"):
        hvd.init()
    assert not hvd.is_initialized()


def on_cores(rank: int, world_size: int, cores: list[int]) -> None:
    usable = os.sched_getaffinity(0)
    hvd.init()
    hvd.allreduce(torch.ones(1))
    (thread,) = (
        each for each in threading.enumerate() if each.name == "farandole-named-collectives"
    )
    assert os.sched_getaffinity(thread.native_id or 0) == {cores[rank]}
    assert os.sched_getaffinity(0) == usable
    hvd.barrier()
    hvd.shutdown()


def test_the_thread_runs_on_its_core() -> None:
    usable = sorted(os.sched_getaffinity(0))
    cores = [usable[0], usable[-1]]
    affinity = {"HOROVOD_THREAD_AFFINITY": ",".join(map(str, cores))}
    ranks.run(on_cores, 2, cores, setup=ranks.Setup(env=affinity))


ALONE = """
import os, time
import farandole
import horovod.torch as hvd
began = time.monotonic()
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    print(type(error.__cause__).__name__, time.monotonic() - began)
print(os.environ.get("FARANDOLE_LOG"), os.environ.get("FARANDOLE_NETWORK_INTERFACE"))
print(farandole.logs.LOGGER.level)
"""


@pytest.mark.system
def test_the_start_has_a_limit_and_levels_are_taken_over(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ALONE)
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    given = {"START_TIMEOUT": "2", "LOG_LEVEL": "FATAL", "GLOO_IFACE": "lo"}
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment(**alone, **{f"HOROVOD_{name}": value for name, value in given.items()}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    found = re.fullmatch(r"TimeoutError (\S+)\nerror lo\n40\n", done.stdout)
    assert found, done.stdout + done.stderr
    assert 1 < float(found[1]) < 30


def late_after_the_start(rank: int, world_size: int, port: int) -> None:
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    hvd.init()
    time.sleep(6 * rank)
    torch.distributed.barrier()
    hvd.shutdown()


def test_the_patience_of_the_start_is_not_that_of_operations() -> None:
    given = {"HOROVOD_START_TIMEOUT": "5", "MASTER_ADDR": "127.0.0.1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks.run(late_after_the_start, 2, port, setup=ranks.Setup(backend=None, env=given))
