# SPDX-License-Identifier: Apache-2.0
"""Collectives and whole training steps in graphs: CUDA's, or those of the simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rank_set import LeftOut, RankSet, World
from test_training import EXACT, WRAPS
from training import STEPS, TASKS, Training, assert_equal, loss_of, seeded, sgd

WARM_UP_STEPS = 11  # as many as torch's DDP needs before a capture


def check_captures(world: World) -> None:
    if world.is_staged:
        raise LeftOut("what is staged cannot be captured")


def warm_up(world: World, body: Callable[[], None]) -> None:
    """Runs it on a side stream."""
    device = world.accelerator.module
    side = device.Stream()
    side.wait_stream(device.current_stream())
    with device.stream(side):
        body()
    device.current_stream().wait_stream(side)


def captured(world: World, body: Callable[[], None]) -> Any:
    """A graph of it; the host waits for nothing meanwhile."""
    device = world.accelerator.module
    graph = world.accelerator.new_graph()
    with device.graph(graph):
        before = device.host_waits() if world.type == "sim" else 0
        body()
        after = device.host_waits() if world.type == "sim" else 0
    assert after == before
    return graph


def _replays(rank: int, world: World, body: Callable[[Tensor, Tensor], None]) -> None:
    check_captures(world)
    own = torch.zeros(1024, device=world.type)
    result = torch.zeros(1024 * world.size, device=world.type)
    warm_up(world, lambda: body(own, result))
    graph = captured(world, lambda: body(own, result))
    for value in (1.0, 2.0, 3.0):
        own.fill_(value + rank)
        graph.replay()
        replayed = result.clone()
        result.zero_()
        body(own, result)
        assert torch.equal(replayed, result)
        assert replayed.any()
    dist.barrier()


def all_reduce(own: Tensor, result: Tensor) -> None:
    summed = result[: own.numel()].copy_(own)
    dist.all_reduce(summed)


def all_gather(own: Tensor, result: Tensor) -> None:
    dist.all_gather_into_tensor(result, own * 2)


def reduce_scatter(own: Tensor, result: Tensor) -> None:
    dist.reduce_scatter_tensor(result[: own.numel()], own.repeat(dist.get_world_size()))


def all_to_all(own: Tensor, result: Tensor) -> None:
    dist.all_to_all_single(result[: own.numel()], own + 1)


def asynchronous(own: Tensor, result: Tensor) -> None:
    summed = result[: own.numel()].copy_(own)
    work = dist.all_reduce(summed, async_op=True)
    own * 3  # on the capturing stream meanwhile
    work.wait()
    summed.mul_(2)


def coalesced(own: Tensor, result: Tensor) -> None:
    parts = result[: own.numel()].copy_(own).chunk(2)
    with dist._coalescing_manager(device=own.device, async_ops=True) as manager:
        for part in parts:
            dist.all_reduce(part)
    manager.wait()


@pytest.mark.parametrize(
    "body", [all_reduce, all_gather, reduce_scatter, all_to_all, asynchronous, coalesced]
)
def test_replays_equal_calls(group: RankSet, body: Callable[[Tensor, Tensor], None]) -> None:
    group.run(_replays, body)


def _barrier(rank: int, world: World) -> None:
    check_captures(world)
    tensor = torch.ones(4, device=world.type)

    def body() -> None:
        tensor.mul_(2)
        with pytest.raises(farandole.NotSupported, match="captured-barrier"):
            dist.barrier()

    captured(world, body).replay()
    assert tensor.tolist() == [2.0] * 4


def test_a_barrier_is_refused_while_capturing(group: RankSet) -> None:
    group.run(_barrier)


def _step(rank: int, world: World, wrap: str) -> None:
    """Graphs replay fixed addresses, so each batch is copied into the first one's place."""
    check_captures(world)
    training = Training(TASKS["layers"])
    x = training.batches(rank, 0)[0].to(world.type)
    made: list[Any] = []

    def train() -> None:
        model = WRAPS[wrap](seeded(training.task, world.type, training.dtype))
        made.extend([model, sgd(model)])
        for _ in range(WARM_UP_STEPS):
            take_step(*made, x)

    warm_up(world, train)
    graph = captured(world, lambda: take_step(*made, x))
    for step in range(STEPS):
        x.copy_(training.batches(rank, step)[0])
        graph.replay()
    got = [each.detach().cpu() for each in made[0].parameters()]
    assert_equal(got, steps_alone(training, world.size), EXACT, world)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, x).backward()
    optimizer.step()


def steps_alone(training: Training, size: int) -> list[Tensor]:
    """The same batches in one process on the CPU."""
    model = seeded(training.task, "cpu", training.dtype)
    optimizer = sgd(model)
    for step in [0] * WARM_UP_STEPS + [*range(STEPS)]:
        optimizer.zero_grad(set_to_none=False)
        for rank in range(size):
            (loss_of(model, training.batches(rank, step)[0]) / size).backward()
        optimizer.step()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("wrap", ["Farandole, static graph", "torch's over Farandole"])
def test_a_captured_training_step_equals_one_process(group: RankSet, wrap: str) -> None:
    group.run(_step, wrap)
