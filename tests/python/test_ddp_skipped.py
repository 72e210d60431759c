# SPDX-License-Identifier: Apache-2.0
"""skip_all_reduce_unused_params: buckets that no rank fills are left alone."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from farandole import BackwardError, DistributedDataParallel
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import ranks
import sim
from ddp_models import Experts
from ddp_oracle import assert_gradients, batch, expected, gradients, seeded


def wrapped(skip: bool = True, find: bool = True) -> DistributedDataParallel:
    return DistributedDataParallel(
        seeded(Experts),
        bucket_cap_mb=0.0001,
        find_unused_parameters=find,
        skip_all_reduce_unused_params=skip,
    )


def loss_of(expert: int) -> object:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        output = model(batch(rank, step, 4, 8), expert)
        return output.mixed.square().mean() + output.balance

    return loss


def is_reduced(ddp: DistributedDataParallel) -> dict[int, bool]:
    """By parameter, whether its bucket was reduced."""
    plan = ddp._replica.plan().buckets  # type: ignore[union-attr]
    return {
        slot.parameter: bucket.finish_ms != 0
        for planned, bucket in zip(plan, ddp.stats().buckets, strict=True)
        for slot in planned.slots
    }


def averages(rank: int, world_size: int) -> None:
    for hooked in (False, True):
        for skip in (True, False):
            ddp = wrapped(skip)
            calls: list[int] = []

            def hook(state: object, bucket: dist.GradBucket, calls: list[int] = calls):  # type: ignore[no-untyped-def]
                calls.append(bucket.index())
                return default_hooks.allreduce_hook(None, bucket)

            del hook.__annotations__["bucket"]
            if hooked:
                ddp.register_comm_hook(None, hook)
            names = [name for name, _ in ddp.module.named_parameters()]
            for step, expert in enumerate([0, 1, 1, 3, 0, 2]):
                loss = loss_of(expert)
                wanted = expected(ddp.module, world_size, loss, step)  # type: ignore[arg-type]
                ddp.zero_grad()
                calls.clear()
                loss(ddp, rank, step).backward()  # type: ignore[operator]
                assert_gradients(ddp, wanted)
                reduced = is_reduced(ddp)
                for index, name in enumerate(names):
                    used = name.startswith(("router", f"experts.{expert}."))
                    assert reduced[index] == (used or not skip), (name, step)
                if hooked:
                    assert len(calls) == sum(b.finish_ms != 0 for b in ddp.stats().buckets)


def kept_gradients(rank: int, world_size: int) -> None:
    """p.grad of parameters in a skipped bucket stays as it was, weights or not."""
    for weight in (None, 3.0):
        ddp = wrapped()
        ddp.set_loss_weight(weight)
        loss_of(1)(ddp, rank, 0).backward()  # type: ignore[operator]
        before = gradients(ddp)["experts.1.weight"]
        ddp.module.router.zero_grad()
        for parameter in ddp.module.experts[1].parameters():
            kept, parameter.grad = parameter.grad, None
        ddp.zero_grad()
        parameter = ddp.module.experts[1].weight
        loss_of(2)(ddp, rank, 1).backward()  # type: ignore[operator]
        assert parameter.grad is None
        ddp.zero_grad()
        parameter.grad = before.clone()  # type: ignore[union-attr]
        if weight is None:
            loss_of(2)(ddp, rank, 1).backward()  # type: ignore[operator]
            torch.testing.assert_close(parameter.grad, before, rtol=0, atol=0)
        del kept


def accumulates(rank: int, world_size: int) -> None:
    """A parameter that only a pass under no_sync() used is not unused."""
    ddp = wrapped()

    def both(model: nn.Module, rank: int, step: int) -> Tensor:
        return loss_of(0)(model, rank, step) + loss_of(1)(model, rank, step + 9)  # type: ignore[operator]

    for step in range(3):
        wanted = expected(ddp.module, world_size, both, step)
        ddp.zero_grad()
        with ddp.no_sync():
            loss_of(1)(ddp, rank, step + 9).backward()  # type: ignore[operator]
        loss_of(0)(ddp, rank, step).backward()  # type: ignore[operator]
        assert_gradients(ddp, wanted)


def other_parameters(rank: int, world_size: int) -> None:
    """A promise that is broken is told, where no hook waits for it."""
    ddp = wrapped()
    for step in range(4):
        expert = rank if step in (1, 2) else 0
        ddp.zero_grad()
        if step in (1, 2):
            with pytest.raises(BackwardError, match=r"and skipped there, but used on other ranks"):
                loss_of(expert)(ddp, rank, step).backward()  # type: ignore[operator]
            continue
        wanted = expected(ddp.module, world_size, loss_of(0), step)  # type: ignore[arg-type]
        loss_of(0)(ddp, rank, step).backward()  # type: ignore[operator]
        assert_gradients(ddp, wanted)


def skips(rank: int, world_size: int) -> None:
    averages(rank, world_size)
    kept_gradients(rank, world_size)
    accumulates(rank, world_size)
    if ranks.share_memory() or ranks.on_simulated_device():
        other_parameters(rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("eager")])
def test_unused_buckets_are_skipped(backend: str) -> None:
    ranks.run(skips, 2, setup=ranks.Setup(backend=backend))
