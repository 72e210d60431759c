# SPDX-License-Identifier: Apache-2.0
"""What ends the group of a pair of ranks, and what both ranks are told."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import farandole
import pytest
import torch
import torch.distributed as dist

from rank_set import RankSet, World

SOON = timedelta(seconds=20)


def ones(world: World) -> torch.Tensor:
    return torch.ones(1000, device=world.type)


def error_of_the_end(group: dist.ProcessGroup) -> str:
    """Waits until the other rank has ended the group."""
    options = dist.AllreduceOptions()
    options.timeout = SOON
    with pytest.raises(farandole.CommError) as caught:
        group.allreduce([torch.ones(1)], options).wait()  # on the CPU; the other has no part in it
    return str(caught.value)


def _late(rank: int, world: World) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
    tensor = ones(world)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        with pytest.raises(farandole.TimeoutError, match="wait-timeout"):
            work.wait(timedelta(milliseconds=50))
    work.wait()
    assert tensor.tolist() == [world.size] * 1000


def test_a_wait_with_a_timeout_leaves_the_collective_running(doomed: RankSet) -> None:
    doomed.run(_late)


def _timeout(rank: int, world: World) -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    tensor = ones(world)
    dist.all_reduce(tensor, group=group)
    world.accelerator.settle()
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        with pytest.raises(farandole.TimeoutError, match=r"rank 0 .*has not ended within 3000 ms"):
            work.wait(SOON)
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(farandole.TimeoutError):
            dist.all_reduce(tensor, group=group)
    else:
        assert "has not ended within 3000 ms" in error_of_the_end(group)
    world.accelerator.forget_races()
    other = ones(world)
    dist.all_reduce(other)  # other groups go on
    assert other.tolist() == [world.size] * 1000


def test_a_timeout_names_the_collective_on_both_ranks(doomed: RankSet) -> None:
    doomed.run(_timeout)


def _abort(rank: int, world: World) -> None:
    tensor = ones(world)
    dist.all_reduce(tensor)
    world.accelerator.settle()
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        farandole.abort()
        with pytest.raises(farandole.AbortedError):
            work.wait(SOON)
    else:
        error_of_the_end(dist.group.WORLD)
    with pytest.raises(farandole.AbortedError):
        dist.all_reduce(tensor)
    world.accelerator.forget_races()


def test_an_abort_ends_what_is_pending(doomed: RankSet) -> None:
    doomed.run(_abort)


def _death(rank: int, world: World) -> None:
    tensor = ones(world)
    dist.all_reduce(tensor)
    world.accelerator.settle()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(farandole.CommError, match="rank 1"):
        dist.all_reduce(tensor, async_op=True).wait(SOON)
    assert time.monotonic() - begin < 10
    with pytest.raises(farandole.CommError, match="rank 1"):
        dist.all_reduce(tensor)
    world.accelerator.forget_races()


def test_a_killed_rank_is_named(doomed: RankSet) -> None:
    doomed.run(_death, may_die=(1,))


def _device_failure(rank: int, world: World) -> None:
    tensor = ones(world)
    dist.all_reduce(tensor)
    world.accelerator.settle()
    dist.barrier()
    if rank == 1:
        world.accelerator.break_device()
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(tensor, async_op=True).wait(SOON)
    if rank == 1:
        os._exit(0)  # nothing works on this device any more
    assert isinstance(caught.value, farandole.CommError)
    assert "rank 1" in str(caught.value)
    world.accelerator.forget_races()


def test_a_device_that_fails_ends_the_group(doomed: RankSet) -> None:
    doomed.run(_device_failure, may_die=(1,))
