# SPDX-License-Identifier: Apache-2.0
"""A gradient with Inf or NaN is named on every rank, before it gets into a parameter."""

from __future__ import annotations

import copy
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import farandole
import pytest
import torch
from farandole import DistributedDataParallel, GradScaler, ZeroRedundancyOptimizer
from torch import Tensor, nn

import ranks
import sim
from zero_oracle import assert_same_everywhere

LARGE = 300  # rows, so that gradients are computed in their places


def model_of(rows: int = LARGE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, rows), nn.Linear(rows, 8))


def spoiled(model: nn.Module, name: str, value: float = math.nan) -> None:
    """One element of what the next backward gives a parameter, in its memory."""

    def change(gradient: Tensor) -> Tensor:
        handle.remove()
        gradient.view(-1)[0] = value
        return gradient

    handle = model.get_parameter(name).register_hook(change)


def backward(ddp: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(10 * step + rank)
    ddp(torch.randn(4, 8, generator=generator)).square().mean().backward()


@contextmanager
def standard_error() -> Iterator[list[str]]:
    """The lines that this process writes meanwhile, also in C++."""
    lines: list[str] = []
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            lines += file.read().decode().splitlines()


def has_gradients(model: nn.Module) -> bool:
    return any(p.grad is not None for p in model.parameters())


def raises(rank: int, world_size: int, rows: int, gradients: str | None) -> list[str]:
    """In each of the first backward passes, whose gradients go different ways."""
    ddp = DistributedDataParallel(model_of(rows), report_nonfinite="raise")
    optimizer: torch.optim.Optimizer | None = None
    if gradients is not None:
        optimizer = ZeroRedundancyOptimizer(
            ddp.parameters(), torch.optim.SGD, lr=0.1, gradients=gradients
        )
    texts = []
    for step in range(4):
        ddp.zero_grad()
        if rank == world_size - 1:
            spoiled(ddp.module, "1.weight", (math.nan, math.inf)[step % 2])
        with pytest.raises(farandole.BackwardError) as raised:
            backward(ddp, rank, step)
        texts.append(str(raised.value).splitlines()[0])
        assert not has_gradients(ddp)
        backward(ddp, rank, step)
        assert all(bool(p.grad.isfinite().all()) for p in ddp.parameters())
        if optimizer is not None:
            optimizer.step()
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.wait()
    assert_same_everywhere(ddp.module)
    return texts


@pytest.mark.parametrize(
    ("backend", "rows", "gradients"),
    [
        ("farandole", LARGE, None),
        ("farandole", 3, None),
        ("farandole", LARGE, "shard"),
        ("farandole", LARGE, "full"),
        ("gloo", LARGE, None),
        ("gloo", LARGE, "shard"),
        pytest.param("sim-lazy", LARGE, None, marks=sim.NEEDS_NCCL),
    ],
)
def test_every_rank_raises_the_same(backend: str, rows: int, gradients: str | None) -> None:
    results = ranks.run(raises, 2, rows, gradients, setup=ranks.Setup(backend))
    for number in range(4):
        for rank, texts in enumerate(results):
            assert texts[number].startswith(f"backward #{2 * number + 1} in group ")
            assert (
                f"on rank {rank} of 2: gradients have an Inf or NaN, the first of '1.weight' "
                in (texts[number])
            )
            assert texts[number].endswith(") on rank 1.")


def first_of_each(rank: int, world_size: int) -> str:
    ddp = DistributedDataParallel(model_of(), report_nonfinite="raise")
    spoiled(ddp.module, "0.bias" if rank == 1 else "1.bias")
    spoiled(ddp.module, "0.weight")
    with pytest.raises(farandole.BackwardError) as raised:
        backward(ddp, rank, 0)
    return str(raised.value).splitlines()[0].partition("the first")[2]


def test_the_first_of_each_rank_is_named() -> None:
    texts = ranks.run(first_of_each, 3)
    assert texts[0] == texts[1]
    assert "of '1.bias' (bucket 0) on ranks 0 and 2" in texts[0]
    assert "of '0." in texts[0].partition("ranks 0 and 2")[0] + texts[0].partition("and 2")[2]
    assert texts[0].endswith(".")


def skips(rank: int, world_size: int, gradients: str | None) -> list[str]:
    """Steps of batches with NaN change nothing, momentum included."""
    model = model_of()
    ddp = DistributedDataParallel(model, report_nonfinite="skip")
    without = copy.deepcopy(model)  # never sees such a batch
    other = DistributedDataParallel(without)
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = [
        torch.optim.SGD(net.parameters(), **options)
        if gradients is None
        else ZeroRedundancyOptimizer(
            net.parameters(), torch.optim.SGD, gradients=gradients, **options
        )
        for net in (ddp, other)
    ]
    with standard_error() as lines:
        for step in range(5):
            for net, optimizer in zip((ddp, other), optimizers, strict=True):
                optimizer.zero_grad()
                if step in (1, 3):
                    if net is other:
                        continue
                    if rank == 0:
                        spoiled(model, "0.weight")
                backward(net, rank, step)
                assert has_gradients(net) == (step not in (1, 3))
                optimizer.step()
    for own, wanted in zip(model.parameters(), without.parameters(), strict=True):
        assert torch.equal(own, wanted)
    return lines


@pytest.mark.parametrize("gradients", [None, "full", "shard"])
def test_batches_are_left_out(gradients: str | None) -> None:
    lines = ranks.run(skips, 2, gradients)
    assert lines[1] == []
    assert [line.partition(": backward #")[2].partition(" in ")[0] for line in lines[0]] == [
        "2",
        "4",
    ]
    assert all("WARNING" in line and "'0.weight'" in line for line in lines[0])


def warns(rank: int, world_size: int) -> list[str]:
    ddp = DistributedDataParallel(model_of())
    with standard_error() as lines:
        with ddp.no_sync():
            if rank == 1:
                spoiled(ddp.module, "1.bias")
            backward(ddp, rank, 0)
        backward(ddp, rank, 1)
        ddp.zero_grad()
        backward(ddp, rank, 2)
    return lines


def test_the_environment_asks_for_a_line() -> None:
    setup = ranks.Setup(env={"FARANDOLE_CHECK_FINITE": "warn"})
    lines = ranks.run(warns, 2, setup=setup)
    assert lines[0] == []
    assert len(lines[1]) == 1
    assert "the first of '1.bias' (bucket 0) on rank 1." in lines[1][0]


def strictest(rank: int, world_size: int) -> None:
    policies = ["off", "warn", "raise"]
    ddp = DistributedDataParallel(model_of(), report_nonfinite=policies[rank])
    for step in range(world_size):
        if rank == step:
            spoiled(ddp.module, "0.bias")
        with pytest.raises(farandole.BackwardError, match=rf"0\.bias.*on rank {step}"):
            backward(ddp, rank, step)


def test_the_strictest_policy_holds() -> None:
    ranks.run(strictest, 3)


def zeroes(rank: int, world_size: int) -> None:
    """What a pass has left and the program has taken away is nobody's NaN."""
    ddp = DistributedDataParallel(model_of(), report_nonfinite="raise")
    for set_to_none in (True, False):
        if rank == 1:
            spoiled(ddp.module, "0.bias")
        with ddp.no_sync():
            backward(ddp, rank, 0)
        ddp.zero_grad(set_to_none)
        backward(ddp, rank, 1)
        assert has_gradients(ddp)


def test_gradients_that_were_zeroed_are_not_named() -> None:
    ranks.run(zeroes, 2)


def overflows(rank: int, world_size: int, gradients: str | None) -> None:
    """Each pass brings finite gradients, their sum on rank 1 is not."""
    ddp = DistributedDataParallel(model_of(), report_nonfinite="raise")
    optimizer: torch.optim.Optimizer | None = None
    if gradients is not None:
        optimizer = ZeroRedundancyOptimizer(
            ddp.parameters(), torch.optim.SGD, lr=0.1, gradients=gradients
        )
    for step in range(3):
        ddp.zero_grad()
        large = rank == 1 and step == 2
        for weight in ddp.module.parameters():
            weight.grad = torch.full_like(weight, 3e38) if large else None
        if large:
            spoiled(ddp.module, "1.bias", 3e38)
        try:
            backward(ddp, rank, step)
            assert step < 2
        except farandole.BackwardError as error:
            assert step == 2
            assert "the first of '1.bias' (bucket " in str(error)  # noqa: PT017
            assert ") on rank 1" in str(error)  # noqa: PT017
    del optimizer  # as long, "shard" leaves gradients to it


@pytest.mark.parametrize("gradients", [None, "full", "shard"])
def test_a_sum_that_overflows_is_named(gradients: str | None) -> None:
    ranks.run(overflows, 2, gradients)


def joins(rank: int, world_size: int) -> list[int]:
    """A rank without inputs goes on beside one that has met NaN."""
    ddp = DistributedDataParallel(model_of(), report_nonfinite="raise")
    seen = []
    with ddp.join():
        for step in range(1 + 3 * rank):
            if rank == 1 and step == 2:
                spoiled(ddp.module, "0.bias")
            try:
                backward(ddp, rank, step)
            except farandole.BackwardError:
                seen.append(step)
    return seen


def test_ranks_without_inputs_do_not_raise() -> None:
    assert ranks.run(joins, 2) == [[], [2]]


def scales(rank: int, world_size: int, gradients: str | None) -> float:
    ddp = DistributedDataParallel(model_of(), report_nonfinite="skip")
    optimizer = (
        torch.optim.SGD(ddp.parameters(), lr=0.1)
        if gradients is None
        else ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, gradients=gradients)
    )
    scaler = GradScaler(init_scale=4.0)
    if rank == 1:
        spoiled(ddp.module, "0.bias")
    scaler.scale(ddp(torch.ones(1, 8)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


def scales_two(rank: int, world_size: int) -> float:
    """One optimizer of two models: the gradients of one are dropped."""
    ddps = [DistributedDataParallel(model_of(), report_nonfinite="skip") for _ in range(2)]
    optimizer = torch.optim.SGD([p for ddp in ddps for p in ddp.parameters()], lr=0.1)
    scaler = GradScaler(init_scale=4.0, growth_interval=1)
    if rank == 1:
        spoiled(ddps[0].module, "0.bias")
    scaler.scale(sum(ddp(torch.ones(1, 8)).sum() for ddp in ddps)).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


def test_dropped_gradients_count_beside_others() -> None:
    assert ranks.run(scales_two, 2) == [2.0, 2.0]


@pytest.mark.parametrize("gradients", [None, "full", "shard"])
def test_a_scaler_lowers_its_scale_where_gradients_were_dropped(gradients: str | None) -> None:
    assert ranks.run(scales, 2, gradients) == [2.0, 2.0]


def test_a_policy_that_is_none_is_told() -> None:
    ranks.run(unknown, 1)


def unknown(rank: int, world_size: int) -> None:
    with pytest.raises(farandole.InvalidArgument, match="off, warn, skip, raise"):
        DistributedDataParallel(model_of(), report_nonfinite="ignore")  # type: ignore[arg-type]
