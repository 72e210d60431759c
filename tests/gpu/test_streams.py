# SPDX-License-Identifier: Apache-2.0
"""Streams and events: nothing is read before it is there, or freed while it is read.

Delays make what lacks a wait visible on a GPU; the simulated device has a race detector.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from rank_set import LeftOut, RankSet, World

COUNT = 1 << 20


def total(world: World) -> float:
    """Of rank + 1 over all ranks."""
    return world.size * (world.size + 1) / 2


def late(rank: int, world: World) -> Tensor:
    """A tensor of rank + 1 that the current stream fills after a while."""
    tensor = torch.zeros(COUNT, device=world.type)
    world.accelerator.delay()
    return tensor.fill_(rank + 1.0)


def assert_filled(tensor: Tensor, value: float) -> None:
    assert bool((tensor == value).all()), f"{tensor} instead of {value}"


def _synchronous(rank: int, world: World) -> None:
    tensor = late(rank, world)
    dist.all_reduce(tensor)
    assert_filled(tensor * 2, 2 * total(world))


def test_a_synchronous_call_orders_the_current_stream(group: RankSet) -> None:
    group.run(_synchronous)


def _side_stream(rank: int, world: World) -> None:
    device = world.accelerator.module
    side = device.Stream()
    tensor = late(rank, world)
    work = dist.all_reduce(tensor, async_op=True)
    with device.stream(side):
        work.wait()
        doubled = tensor * 2
    device.current_stream().wait_stream(side)
    assert_filled(doubled, 2 * total(world))
    work.wait()
    assert_filled(tensor, total(world))


def test_work_wait_orders_the_stream_that_is_current_then(group: RankSet) -> None:
    group.run(_side_stream)


def _on_side_stream(rank: int, world: World) -> None:
    device = world.accelerator.module
    side = device.Stream()
    side.wait_stream(device.current_stream())
    with device.stream(side):
        tensor = late(rank, world)
        dist.all_reduce(tensor)
        doubled = tensor * 2
    device.current_stream().wait_stream(side)
    assert_filled(doubled, 2 * total(world))
    side.wait_stream(device.current_stream())


def test_a_call_waits_for_the_stream_that_is_current(group: RankSet) -> None:
    group.run(_on_side_stream)


def _freed(rank: int, world: World) -> None:
    output = torch.zeros(COUNT * world.size, device=world.type)
    world.accelerator.module.synchronize()
    work = dist.all_gather_into_tensor(output, late(rank, world), async_op=True)
    for _ in range(8):  # would get its memory, were it free
        torch.full((COUNT,), -1.0, device=world.type)
    work.wait()
    for each in range(world.size):
        assert_filled(output[each * COUNT : (each + 1) * COUNT], each + 1.0)


def test_a_tensor_that_is_freed_while_pending_keeps_its_memory(group: RankSet) -> None:
    group.run(_freed)


def _dropped(rank: int, world: World) -> None:
    tensor = late(rank, world)
    dist.all_reduce(tensor, async_op=True)  # nobody keeps the Work
    after = torch.full((COUNT,), rank + 1.0, device=world.type)
    dist.all_reduce(after)
    assert_filled(after, total(world))
    assert_filled(tensor, total(world))  # of the group's stream, in order


def test_a_work_that_nobody_keeps_is_done(group: RankSet) -> None:
    group.run(_dropped)


def _completion(rank: int, world: World) -> None:
    dist.barrier()
    begin = time.monotonic()
    work = dist.all_reduce(late(rank, world), async_op=True)
    launched_s = time.monotonic() - begin
    while not work.is_completed():
        assert time.monotonic() - begin < 20, "never completed"
        time.sleep(0.001)
    assert work.is_success()
    work.wait()
    assert launched_s < 10, f"the call took {launched_s} s: the host waited"


def test_a_work_completes_without_a_wait(group: RankSet) -> None:
    group.run(_completion)


def _future(rank: int, world: World) -> None:
    work = dist.all_reduce(late(rank, world), async_op=True)
    halved = work.get_future().then(lambda done: done.value()[0] / 2)
    assert_filled(halved.wait(), total(world) / 2)


def test_a_future_hands_on_the_result(group: RankSet) -> None:
    group.run(_future)


def _coalesced(rank: int, world: World) -> None:
    device = world.accelerator.device(world.accelerator.module.current_device())
    tensors = [late(rank, world), late(rank, world)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        assert_filled(tensor, total(world))


def test_coalesced_collectives_are_one(group: RankSet) -> None:
    group.run(_coalesced)


def _barrier(rank: int, world: World) -> None:
    if rank == world.size - 1:
        time.sleep(0.3)
    begin = time.monotonic()
    dist.barrier()
    waited_s = time.monotonic() - begin
    if world.size > 1 and rank == 0:
        assert waited_s > 0.2, f"left the barrier after {waited_s} s"


def test_a_barrier_waits_for_all_ranks(group: RankSet) -> None:
    group.run(_barrier)


def _many(rank: int, world: World) -> None:
    tensors = [torch.full((257,), rank + 1.0, device=world.type) for _ in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    assert_filled(torch.stack(tensors), total(world))


def test_hundreds_of_works_may_be_pending(group: RankSet) -> None:
    group.run(_many)


def _host_waits(rank: int, world: World) -> None:
    if world.type != "sim":
        raise LeftOut("only the simulated device counts waits of the host")
    if world.is_staged:
        raise LeftOut("the host waits for copies of staged tensors")
    tensor = torch.full((COUNT,), rank + 1.0, device=world.type)
    before = world.accelerator.module.host_waits()
    for _ in range(10):
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert world.accelerator.module.host_waits() == before


def test_no_call_waits_on_the_host(group: RankSet) -> None:
    group.run(_host_waits)


def _wrong_stream_is_seen(rank: int, world: World) -> None:
    """That the delay is long enough to show what a missing wait does."""
    if world.type == "sim":
        raise LeftOut("the race detector needs no delay")
    device = world.accelerator.module
    side = device.Stream()
    tensor = torch.zeros(COUNT, device=world.type)
    device.synchronize()
    with device.stream(side):
        world.accelerator.delay()
        tensor.fill_(1.0)
    seen = tensor.clone()
    assert_filled(seen, 0.0)
    device.synchronize()


def test_a_missing_wait_would_be_seen(group: RankSet) -> None:
    group.run(_wrong_stream_is_seen)
