# SPDX-License-Identifier: Apache-2.0
"""Uneven inputs: ranks that have reached their end take part until all have."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from farandole import BackwardError, DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim.zero_redundancy_optimizer import Gradients
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join

import ranks
import sim
from ddp_models import Convolutional, Layers
from ddp_oracle import assert_alike, batch, seeded

LR = 0.1


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def steps_of(rank: int) -> int:
    return 2 + 2 * rank


def train_alone(model: nn.Module, world_size: int, by_all: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for step in range(steps_of(world_size - 1)):
        optimizer.zero_grad()
        active = [rank for rank in range(world_size) if step < steps_of(rank)]
        for rank in active:
            share = 1 / (world_size if by_all else len(active))
            (square(model(batch(rank, step, 4, 8))) * share).backward()
        optimizer.step()


def uneven(rank: int, world_size: int, by_all: bool) -> None:
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        model = seeded(Layers)
        alone = copy.deepcopy(model)
        train_alone(alone, world_size, by_all)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005, **options)
        optimizer = torch.optim.SGD(ddp.parameters(), LR)
        with ddp.join(divide_by_initial_world_size=by_all):
            for step in range(steps_of(rank)):
                optimizer.zero_grad()
                square(ddp(batch(rank, step, 4, 8))).backward()
                optimizer.step()
        for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12)
            assert_alike(own.detach())


@pytest.mark.parametrize(
    ("backend", "world_size", "by_all"),
    [
        ("farandole", 3, True),
        ("farandole", 2, False),
        ("hosts", 3, False),
        ("gloo", 2, True),
        ("gloo", 3, False),
        pytest.param("sim-lazy", 3, False, marks=sim.NEEDS_NCCL),
    ],
)
def test_uneven_inputs(backend: str, world_size: int, by_all: bool) -> None:
    ranks.run(uneven, world_size, by_all, setup=ranks.Setup(backend=backend))


def uneven_with_weights(rank: int, world_size: int) -> None:
    """Sums over items of the batches that there are; buffers; one rank has no batch at all."""
    model = seeded(Layers)
    alone = copy.deepcopy(model)
    sizes = [[3, 1, 2], [2, 5], []]
    optimizer = torch.optim.SGD(alone.parameters(), LR)
    for step in range(3):
        optimizer.zero_grad()
        parts = [batch(r, step, s[step], 8) for r, s in enumerate(sizes) if step < len(s)]
        square(alone(torch.cat(parts))).backward()
        optimizer.step()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), LR)
    ddp.set_loss_weight(0)
    with ddp.join():
        for step, size in enumerate(sizes[rank]):
            optimizer.zero_grad()
            ddp.set_loss_weight(size)
            square(ddp(batch(rank, step, size, 8))).backward()
            optimizer.step()
    for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12)


def uneven_with_buffers(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(seeded(Convolutional))
    with ddp.join():
        for step in range(1 + rank):
            with ddp.no_sync():
                square(ddp(batch(rank, 10 + step, 4, 192))).backward()
            square(ddp(batch(rank, step, 4, 192))).backward()
    for name, tensor in ddp.state_dict().items():
        assert_alike(tensor, name)
    assert ddp._get_ddp_logging_data()["join_uneven_inputs"] == 1
    with ddp.join(enable=False):
        square(ddp(batch(rank, 0, 4, 192))).backward()
    assert ddp._get_ddp_logging_data()["join_uneven_inputs"] == 0


def early_end(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(seeded(Layers))
    text = "exhausted"
    with pytest.raises(RuntimeError, match=text), ddp.join(throw_on_early_termination=True):  # noqa: PT012
        for step in range(steps_of(rank)):
            square(ddp(batch(rank, step, 4, 8))).backward()
    with ddp.join(enable=False):
        square(ddp(batch(rank, 0, 4, 8))).backward()
    dist.barrier()


def zeroed_after_steps(rank: int, world_size: int) -> None:
    """A program that zeroes after step() begins the next epoch without gradients on every rank."""
    ddp = DistributedDataParallel(seeded(Layers))
    plain = copy.deepcopy(ddp.module)
    optimizer = torch.optim.SGD(ddp.parameters(), LR)
    with ddp.join():
        for step in range(steps_of(rank)):
            square(ddp(batch(rank, step, 4, 8))).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(p.grad is None for p in ddp.parameters())
    plain.load_state_dict(ddp.module.state_dict())
    square(ddp(batch(rank, 20, 4, 8))).backward()
    for each in range(world_size):
        (square(plain(batch(each, 20, 4, 8))) / world_size).backward()
    for own, wanted in zip(ddp.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, wanted.grad, rtol=1e-9, atol=1e-12)


def zeroed_after_sharded_steps(rank: int, world_size: int) -> None:
    """The same with a ZeroRedundancyOptimizer, which steps what the others bring meanwhile."""
    modes: list[Gradients] = ["full", "shard"]
    for mode in modes:
        ddp = DistributedDataParallel(seeded(Layers))
        alone = copy.deepcopy(ddp.module)
        train_alone(alone, world_size, by_all=True)
        optimizer = ZeroRedundancyOptimizer(
            ddp.parameters(), torch.optim.SGD, lr=LR, gradients=mode
        )
        with Join([ddp, optimizer]):
            for step in range(steps_of(rank)):
                square(ddp(batch(rank, step, 4, 8))).backward()
                optimizer.step()
                optimizer.zero_grad()
        for own, wanted in zip(ddp.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12)
        assert all(p.grad is None for p in ddp.parameters())


def raise_lost(_: Tensor) -> Tensor:
    raise ValueError("lost")


def left_by_an_exception(rank: int, world_size: int) -> None:
    """Peers wait in a backward of which they are told in the next forward."""
    ddp = DistributedDataParallel(seeded(Layers))
    with ddp.join():
        for step in range(steps_of(0) + 1):
            ddp.zero_grad()
            output = ddp(batch(rank, step, 4, 8))
            if step == 1 and rank == 0:
                output.register_hook(raise_lost)
            left = (ValueError, "lost") if rank == 0 else (BackwardError, "rank 0")
            with pytest.raises(left[0], match=left[1]) if step == 1 else contextlib.nullcontext():
                square(output).backward()
    alone = copy.deepcopy(ddp.module)
    alone.zero_grad()
    for other in range(world_size):
        (square(alone(batch(other, step, 4, 8))) / world_size).backward()
    for own, other in zip(ddp.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def square_or_leave(ddp: DistributedDataParallel, x: Tensor, leaves: bool) -> bool:
    """One backward; whether it ended in an error on this rank."""
    ddp.zero_grad()
    output = ddp(x)
    if leaves:
        output.register_hook(raise_lost)
        with pytest.raises(ValueError, match="lost"):
            square(output).backward()
        return True
    try:
        square(output).backward()
    except BackwardError as error:
        return list(error.ranks) == [0]
    return False


def left_after_a_join(rank: int, world_size: int) -> None:
    """A rank without inputs takes part in the next backward, and steps when the others do."""
    modes: list[Gradients] = ["full", "shard"]
    for mode in modes:
        ddp = DistributedDataParallel(seeded(Layers))
        optimizer = ZeroRedundancyOptimizer(
            ddp.parameters(), torch.optim.SGD, lr=LR, gradients=mode
        )
        failed = []
        with Join([ddp, optimizer]):
            for step in range(2 if rank == 2 else 6):
                if square_or_leave(ddp, batch(rank, step, 4, 8), step == 3 and rank == 0):
                    failed.append(step)
                else:
                    optimizer.step()
        assert failed == ([] if rank == 2 else [3])
        for parameter in ddp.parameters():
            assert_alike(parameter.detach())


def left_in_the_last_backward(rank: int, world_size: int) -> None:
    """The rank has no forward after it in which it would tell its peers."""
    ddp = DistributedDataParallel(seeded(Layers))
    last = steps_of(rank) - 1
    failed = 0
    with ddp.join():
        for step in range(last + 1):
            failed += square_or_leave(ddp, batch(rank, step, 4, 8), step == last and rank == 0)
    assert failed == 1


def left_before_an_evaluation(rank: int, world_size: int) -> None:
    """A forward without gradients, which sends buffers, tells peers too."""
    ddp = DistributedDataParallel(seeded(Convolutional))
    for step in range(3):
        x = batch(rank, step, 4, 192)
        assert square_or_leave(ddp, x, step == 1 and rank == 0) == (step == 1)
        with torch.no_grad():
            ddp(x)
    square(ddp(x)).backward()


def steps_of_gradients_made_by_hand(rank: int, world_size: int) -> None:
    """The wrapper has run no backward: a rank without inputs takes the others' steps."""
    ddp = DistributedDataParallel(seeded(Layers))
    before = [parameter.detach().clone() for parameter in ddp.parameters()]
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=1.0)
    with Join([optimizer]):
        for _ in range(1 + rank):
            for parameter in ddp.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    for parameter, old in zip(ddp.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old - world_size)
        assert_alike(parameter.detach())


CHECKS = [
    uneven_with_weights,
    uneven_with_buffers,
    early_end,
    zeroed_after_steps,
    zeroed_after_sharded_steps,
    left_by_an_exception,
    left_after_a_join,
    left_in_the_last_backward,
    left_before_an_evaluation,
    steps_of_gradients_made_by_hand,
]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check(rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("lazy")])
def test_weights_buffers_and_early_ends(backend: str) -> None:
    ranks.run(run_checks, 3, setup=ranks.Setup(backend=backend))
