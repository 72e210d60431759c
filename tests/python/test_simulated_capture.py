# SPDX-License-Identifier: Apache-2.0
"""Training steps in graphs of the simulated device, which refuses waits of the host in a capture.

tests/gpu/test_capture.py has what runs on CUDA, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
import sim
from ddp_oracle import batch, seeded
from test_simulated_ddp import Branches, Layers, on_own_streams, square

pytestmark = sim.NEEDS_NCCL
STEPS = 3


def on_ranks(body: Callable[..., None], schedule: str, *args: Any) -> None:
    ranks.run(body, 2, *args, setup=ranks.Setup(backend="sim-" + schedule))


def captured(body: Callable[[], object]) -> sim.Graph:
    graph = sim.Graph()
    with sim.graph(graph):
        body()
    return graph


def on_side_stream(body: Callable[[], None]) -> None:
    """As torch asks for what comes before a capture."""
    side = sim.Stream()
    side.wait_stream(sim.current_stream())
    with side:
        body()
    sim.current_stream().wait_stream(side)


class Unused(Layers):
    """Has parameters that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


OwnDDP = farandole.DistributedDataParallel
WRAPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], nn.Module]]] = {
    "defaults": (Layers, OwnDDP),
    "static graph": (Layers, partial(OwnDDP, static_graph=True, bucket_cap_mb=1e-4)),
    "wire": (Layers, partial(OwnDDP, wire_dtype="bfloat16")),
    "unused": (Unused, partial(OwnDDP, find_unused_parameters=True)),
    "branches": (Branches, OwnDDP),
    "torch's": (Layers, partial(nn.parallel.DistributedDataParallel, static_graph=True)),
}


def trained(rank: int, wrap: str, is_captured: bool, accumulates: bool) -> list[Tensor]:
    """The parameters after some steps, of which the last ones are replays if `is_captured`."""
    make, wrapped = WRAPS[wrap]
    inputs = batch(rank, 0, 4, 8)
    made: list[Any] = []

    def step() -> None:
        _, ddp, optimizer = made
        optimizer.zero_grad(set_to_none=accumulates)
        if accumulates:
            with ddp.no_sync():
                square(ddp(inputs * 2)).backward()
        square(ddp(inputs)).backward()
        optimizer.step()

    def warm_up() -> None:
        model = seeded(make)
        nodes = on_own_streams(model) if make is Branches else []
        ddp = wrapped(model)
        made.extend([nodes, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)])
        for i in range(STEPS):
            inputs.copy_(batch(rank, i, 4, 8))
            step()

    on_side_stream(warm_up)
    graph = captured(step) if is_captured else None
    for i in range(STEPS, 2 * STEPS):
        inputs.copy_(batch(rank, i, 4, 8))
        graph.replay() if graph else step()
    return [each.detach().cpu() for each in made[1].parameters()]


def check_training(rank: int, world_size: int) -> None:
    for wrap in WRAPS:
        for accumulates in [False, True] if wrap == "defaults" else [False]:
            wanted = trained(rank, wrap, False, accumulates)
            got = trained(rank, wrap, True, accumulates)
            for own, other in zip(got, wanted, strict=True):
                assert torch.equal(own, other), wrap


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_replays_of_a_step_equal_steps(schedule: str) -> None:
    on_ranks(check_training, schedule)


def sharded(rank: int, is_captured: bool, **options: Any) -> list[Tensor]:
    """The same with a sharded optimizer, whose step() no graph can hold."""
    inputs = batch(rank, 0, 4, 8)
    made: list[Any] = []

    def backward() -> None:
        made[1].zero_grad(set_to_none=False)
        square(made[0](inputs)).backward()

    def warm_up() -> None:
        ddp = OwnDDP(seeded(Layers), static_graph=True)
        optimizer = farandole.ZeroRedundancyOptimizer(
            ddp.parameters(), torch.optim.AdamW, lr=0.01, eps=1e-3, **options
        )
        made.extend([ddp, optimizer])
        for i in range(STEPS):
            inputs.copy_(batch(rank, i, 4, 8))
            backward()
            optimizer.step()
        optimizer.wait()

    def pass_and_step() -> None:
        backward()
        with pytest.raises(farandole.NotSupported, match="captured-step"):
            made[1].step()

    on_side_stream(warm_up)
    graph = captured(pass_and_step) if is_captured else None
    for i in range(STEPS, 2 * STEPS):
        inputs.copy_(batch(rank, i, 4, 8))
        graph.replay() if graph else backward()
        made[1].step()
        made[1].wait()
    return [each.detach().cpu() for each in made[0].parameters()]


def check_sharded(rank: int, world_size: int) -> None:
    for options in [{}, {"gradients": "shard"}, {"overlap_with_ddp": True}]:
        wanted = sharded(rank, False, **options)
        got = sharded(rank, True, **options)
        for own, other in zip(got, wanted, strict=True):
            assert torch.equal(own, other), options


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_a_sharded_optimizer_steps_between_replays(schedule: str) -> None:
    on_ranks(check_sharded, schedule)


def check_failed_captures(rank: int, world_size: int) -> None:
    ddp = OwnDDP(seeded(Layers), static_graph=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    inputs, state = batch(rank, 0, 4, 8), torch.ones(4)

    def step() -> None:
        optimizer.zero_grad()
        square(ddp(inputs)).backward()
        optimizer.step()

    def asks_the_device() -> None:
        step()
        assert state.sum().item() == 4

    def goes_on() -> None:
        with pytest.raises(RuntimeError, match="cudaErrorStreamCaptureUnsupported"):
            sim.current_stream().synchronize()
        dist.all_reduce(state)

    def raises_before_the_end() -> None:
        dist.all_reduce(state, async_op=True)
        raise ValueError("of the program")

    def raises_in_backward() -> None:
        loss = square(ddp(inputs))
        loss.register_hook(lambda gradient: gradient.sum().item())
        loss.backward()

    with pytest.raises(farandole.NotSupported, match="captured-memory"):
        captured(step)
    for _ in range(STEPS):
        step()
    for body, error in [
        (asks_the_device, "cudaErrorStreamCaptureInvalidated"),
        (goes_on, "cudaErrorStreamCaptureInvalidated"),
        (raises_before_the_end, "cudaErrorStreamCaptureUnjoined"),
        (raises_in_backward, "cudaErrorStreamCaptureInvalidated"),
    ]:
        with pytest.raises(RuntimeError, match=error):
            captured(body)
        step()
        dist.all_reduce(state.fill_(1))
        assert state.tolist() == [world_size] * 4
        graph = captured(step)
        graph.replay()
    dist.barrier()


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_a_capture_that_fails_leaves_all_usable(schedule: str) -> None:
    on_ranks(check_failed_captures, schedule)


def with_each_fault(rank: int, world_size: int) -> tuple[list[str], list[bool]]:
    """The waits in the capture of a step, and whether the lack of each is found."""
    made: list[Any] = []
    inputs, state = batch(rank, 0, 4, 8), torch.ones(64)
    stream = sim.Stream()

    def step() -> None:
        ddp, optimizer = made
        optimizer.zero_grad()
        square(ddp(inputs)).backward()
        optimizer.step()
        work = dist.all_reduce(state.mul_(0.5), async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(state.add_(1), 0)

    def fails(fault: int | None) -> bool:
        try:
            with sim.graph(graph := sim.Graph(), stream):
                if fault is not None:
                    sim.leave_out_wait_after(fault)
                step()
        except RuntimeError:
            sim.synchronize()
            sim.take_reports()
            return True
        graph.replay()
        graph.replay()
        sim.synchronize()
        return bool(sim.take_reports())

    sim.throw_races(False)
    stream.wait_stream(sim.current_stream())
    with stream:  # that of the captures, so that torch's engine waits for no other
        ddp = OwnDDP(seeded(Layers), static_graph=True, bucket_cap_mb=1e-4)
        made.extend([ddp, torch.optim.SGD(ddp.parameters(), lr=0.1)])
        for _ in range(STEPS):
            step()
    sim.synchronize()
    sim.take_stream_waits()
    assert not fails(None)
    waits = sim.take_stream_waits()
    return waits, [fails(fault) for fault in range(len(waits))]


def test_the_lack_of_each_wait_in_a_capture_is_found() -> None:
    for waits, found in ranks.run(with_each_fault, 2, setup=ranks.Setup(backend="sim-eager")):
        assert sum(found) >= 8, (waits, found)
        for fault, was_found in enumerate(found):
            # A wait of the same streams before or after it may order as much.
            neighbours = waits[max(fault - 1, 0) : fault] + waits[fault + 1 : fault + 2]
            assert was_found or waits[fault] in neighbours, (fault, waits, found)
