# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives: order, waiting, futures, the profiler."""

from __future__ import annotations

import time
from datetime import timedelta

import farandole
import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import ranks


def many(rank: int, world_size: int) -> None:
    tensors = [torch.full((100,), float(rank + i)) for i in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    after = torch.ones(1)
    dist.all_reduce(after)  # queues behind them
    assert after.item() == world_size
    assert all(work.is_completed() and work.is_success() for work in works)
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait()
        assert torch.equal(tensor, torch.full((100,), float(sum(r + i for r in range(world_size)))))
        assert [id(t) for t in work.result()] == [id(tensor)]
    numbers = [work.sequence for work in works]
    assert numbers == list(range(numbers[0], numbers[0] + len(works)))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_collectives_run_in_the_order_of_their_issue(world_size: int) -> None:
    ranks.run(many, world_size)


def kinds(rank: int, world_size: int) -> None:
    own = torch.full((3,), float(rank))
    everyone = [torch.empty(3) for _ in range(world_size)]
    flat = torch.empty(3 * world_size)
    part = torch.empty(3)
    works = [
        dist.all_gather(everyone, own, async_op=True),
        dist.all_gather_into_tensor(flat, own, async_op=True),
        dist.reduce_scatter_tensor(part, flat, async_op=True),
        dist.broadcast(own, src=1, async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    assert [t[0].item() for t in everyone] == list(range(world_size))
    assert torch.equal(part, torch.full((3,), float(rank * world_size)))
    assert torch.equal(own, torch.ones(3))


def test_every_kind_of_collective_may_be_asynchronous() -> None:
    ranks.run(kinds, 2)


def futures(rank: int, world_size: int) -> None:
    tensor = torch.full((4,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    total = world_size * (world_size + 1) / 2
    assert torch.equal(doubled.wait(), torch.full((4,), 2 * total))
    assert torch.equal(future.wait()[0], tensor)

    done = farandole.all_reduce(tensor)  # finished on this thread
    assert done.is_completed()
    assert torch.equal(done.get_future().wait()[0], torch.full((4,), total * world_size))

    chained = []

    def again(_: object) -> None:  # on the executor's thread: it must not wait for itself
        inner = torch.ones(1)
        dist.all_reduce(inner)
        chained.append(inner.item())

    last = dist.all_reduce(tensor, async_op=True).get_future().then(again)
    last.wait()
    assert chained == [world_size]


def test_futures_hold_the_outputs_and_may_issue_collectives() -> None:
    ranks.run(futures, 2)


def patience(rank: int, world_size: int) -> None:
    tensor = torch.ones(1)
    if rank == 1:
        time.sleep(1.0)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        with pytest.raises(farandole.TimeoutError, match="reached its timeout of 50 ms"):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
    work.wait()
    assert tensor.item() == world_size


def test_a_wait_that_timed_out_may_be_repeated() -> None:
    ranks.run(patience, 2)


def profiled(rank: int, world_size: int) -> list[str]:
    del rank, world_size
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        dist.broadcast(torch.ones(3), src=0, async_op=True).wait()
    return [event.name for event in profiler.events()]


def test_the_profiler_shows_collectives_by_name() -> None:
    for names in ranks.run(profiled, 2):
        assert {"farandole:all_reduce", "farandole:barrier", "farandole:broadcast"} <= set(names)
