# SPDX-License-Identifier: Apache-2.0
"""Trainings on a host with a fault, recorded as they run: the report names it first."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import control_groups
import ranks
from recorded_training import Samples, among_other_programs, fired, loader, names, speedup, train

pytestmark = [pytest.mark.alone, pytest.mark.system]
STEPS = 30


def _multiply(_: int) -> None:
    """Milliseconds of a core."""
    x = torch.ones(256, 256)
    for _ in range(8):
        x = x @ x / 256


def _computes(rank: int, size: int, folder: str, core: int | None, quota: Path | None) -> None:
    """Rank 1 is bound to a core, or has a quota of them."""
    if core is not None:
        others = os.sched_getaffinity(0) - {core}
        os.sched_setaffinity(0, {core} if rank == 1 else others)
    if quota is not None and rank == 1:
        control_groups.join(quota)
    train(folder, loader(Samples(STEPS, int)), _multiply)


@contextlib.contextmanager
def _busy(core: int, processes: int) -> Iterator[None]:
    """Processes that compute on a core. A session each, as the kernel may divide cores by these."""
    command = ["/bin/sh", "-c", "while :; do :; done"]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]
    try:
        for process in started:
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@among_other_programs
def test_a_core_that_other_processes_take(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("with one core all ranks are slow")
    if os.getloadavg()[0] > len(cores):
        pytest.skip("other programs take all cores of this host")
    before, after = tmp_path / "before", tmp_path / "after"
    with _busy(cores[-1], 4):
        ranks.run(_computes, 2, str(before), cores[-1], None)
    first = fired(before)[0]
    assert first.rule == "Straggler"
    assert "rank 1 on algo-1" in first.what
    assert "the cause is compute" in first.what
    assert "other processes on its cores" in first.advice

    ranks.run(_computes, 2, str(after), None, None)
    assert speedup(before, after) > 1.5


@among_other_programs
def test_a_quota_of_cores_that_is_used_up(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    hosts = ranks.Setup(backend="hosts")  # each rank has one of its own
    with control_groups.cpu_quota(quota_us=2000, period_us=20_000) as quota:
        ranks.run(_computes, 2, str(before), None, quota, setup=hosts)
    first = fired(before)[0]
    assert first.rule == "Straggler"
    assert "rank 1 on algo-2" in first.what
    assert "the cause is a throttled machine (its cgroup's quota of cores is used" in first.what

    ranks.run(_computes, 2, str(after), None, None, setup=hosts)
    assert not any("quota" in each.what for each in fired(after))
    assert speedup(before, after) > 1.5


# The kernel lets a process read for 100 ms of its limit at once: a block is longer.
_BLOCK_BYTES = 2**18
_READS = 25


def _reads(rank: int, size: int, folder: str, file: str, disks: list[Path | None]) -> None:
    """Each sample is a block of a file; from a slow disk, without a copy in memory."""
    disk = disks[rank]
    if disk is not None:
        control_groups.join(disk)
    opened = os.open(file, os.O_RDONLY | (os.O_DIRECT if disk is not None else 0))
    block = mmap.mmap(-1, _BLOCK_BYTES)
    samples = Samples(_READS, lambda index: os.preadv(opened, [block], index * _BLOCK_BYTES))
    train(folder, loader(samples), lambda _: time.sleep(0.02))
    os.close(opened)


def _slow_disk(path: Path) -> contextlib.AbstractContextManager[Path]:
    """125 ms for a block."""
    return control_groups.slow_reads(path, bytes_per_s=8 * _BLOCK_BYTES)


def _data(folder: Path) -> Path:
    path = folder / "data"
    path.write_bytes(bytes(_READS * _BLOCK_BYTES))
    return path


@among_other_programs
def test_a_slow_disk_of_one_rank(tmp_path: Path) -> None:
    data = _data(tmp_path)
    with _slow_disk(tmp_path) as disk:
        ranks.run(_reads, 2, str(tmp_path), str(data), [None, disk])
    first = fired(tmp_path)[0]
    assert first.rule == "Straggler"
    assert "rank 1 on algo-1" in first.what
    assert "the cause is data (a " in first.what
    assert "waits for disks" in first.what


@among_other_programs
def test_slow_disks_of_all_ranks(tmp_path: Path) -> None:
    data = _data(tmp_path)
    before, after = tmp_path / "before", tmp_path / "after"
    with _slow_disk(tmp_path) as disk, _slow_disk(tmp_path) as other:
        ranks.run(_reads, 2, str(before), str(data), [disk, other])
    first = fired(before)[0]
    assert first.rule == "Dataloader"
    assert "rank 0 (" in first.what
    assert "rank 1 (" in first.what
    assert "waits for disks" in first.what
    assert "read from a faster disk" in first.advice

    ranks.run(_reads, 2, str(after), str(data), [None, None])
    assert "Dataloader" not in names(fired(after, Dataloader_min_threshold=0))  # it needs none
    assert speedup(before, after) > 1.5


_LEAK_BYTES = 2**30
_LEAK_STEPS = 50


def _leaks(rank: int, size: int, folder: str, leak_bytes: int) -> None:
    kept: list[Any] = []
    samples = Samples(_LEAK_STEPS, int)
    train(
        folder,
        loader(samples),
        lambda _: time.sleep(0.08),
        lambda _: kept.append(bytearray(leak_bytes // size // _LEAK_STEPS)),
    )


@among_other_programs
def test_a_leak_of_memory(tmp_path: Path) -> None:
    """1 GB in 5 s."""
    before, after = tmp_path / "before", tmp_path / "after"
    percent = 100 * _LEAK_BYTES / psutil.virtual_memory().total
    rule = {"HostMemoryLeak_patience": 30, "HostMemoryLeak_increase": percent / 2}
    ranks.run(_leaks, 2, str(before), _LEAK_BYTES)
    found = fired(before, **rule)
    assert "HostMemoryLeak" in names(found)  # after Dataloader, where other programs take its cores
    leak = found[names(found).index("HostMemoryLeak")]
    assert "the memory of algo-1 rose by" in leak.what
    assert "what is kept from step to step" in leak.advice

    ranks.run(_leaks, 2, str(after), 0)
    assert "HostMemoryLeak" not in names(fired(after, **rule))
