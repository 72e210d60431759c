# SPDX-License-Identifier: Apache-2.0
"""torch's Python communication hooks on farandole.DistributedDataParallel, unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import BackwardError, DistributedDataParallel, InvalidArgument
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    register_ddp_comm_hook,
)
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward

import ranks
import sim
from ddp_models import Layers
from ddp_oracle import assert_alike, assert_gradients, batch, check_steps, expected, seeded


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(batch(rank, step, 4, 8)).square().mean()


def wrapped(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(seeded(Layers), bucket_cap_mb=0.0005, **options)


def hooks_that_average() -> None:
    wrap16, wrap_bf16 = default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper
    group = dist.group.WORLD
    local = post_localSGD_hook.PostLocalSGDState(group, None, start_localSGD_iter=100)
    cases: list[tuple[object, Callable[..., Any], float]] = [
        (None, default_hooks.allreduce_hook, 1e-9),
        (group, default_hooks.allreduce_hook, 1e-9),
        (None, default_hooks.fp16_compress_hook, 2e-3),
        (None, default_hooks.bf16_compress_hook, 2e-2),
        (None, wrap16(default_hooks.allreduce_hook), 2e-3),
        (None, wrap_bf16(default_hooks.allreduce_hook), 2e-2),
        (local, post_localSGD_hook.post_localSGD_hook, 1e-9),
    ]
    for state, hook, tolerance in cases:
        ddp = wrapped()
        ddp.register_comm_hook(state, hook)
        for step in range(3):
            wanted = expected(ddp.module, dist.get_world_size(), plain_loss, step)
            ddp.zero_grad()
            plain_loss(ddp, dist.get_rank(), step).backward()
            for name, parameter in ddp.module.named_parameters():
                gradient = wanted[name]
                assert gradient is not None
                scale = float(gradient.abs().max())
                assert parameter.grad is not None
                difference = float((parameter.grad - gradient).abs().max())
                assert difference <= tolerance * scale, (hook, name, difference, scale)
                assert_alike(parameter.grad)
        assert ddp._get_ddp_logging_data()["comm_hook"] == hook.__qualname__


def builtin_hooks() -> None:
    ddp = wrapped()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    check_steps(ddp, plain_loss)
    ddp = wrapped()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    plain_loss(ddp, dist.get_rank(), 0).backward()
    ddp = wrapped()
    register_ddp_comm_hook(DDPCommHookType.ALLREDUCE, ddp, dist.group.WORLD)
    check_steps(ddp, plain_loss)


def no_averages() -> None:
    ddp, rank = wrapped(), dist.get_rank()
    ddp.register_comm_hook(None, debugging_hooks.noop_hook)
    wanted = expected(ddp.module, 1, lambda m, r, s: plain_loss(m, rank, s), 0)
    plain_loss(ddp, rank, 0).backward()
    for name, parameter in ddp.module.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-9, atol=1e-12)


def local_sgd() -> None:
    """After its start the gradients are averaged in a subgroup alone: here each rank is one."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    state = post_localSGD_hook.PostLocalSGDState(
        None, groups[dist.get_rank()], start_localSGD_iter=1
    )
    ddp = wrapped()
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    plain_loss(ddp, dist.get_rank(), 0).backward()
    ddp.zero_grad()
    rank = dist.get_rank()
    wanted = expected(ddp.module, 1, lambda m, r, s: plain_loss(m, rank, s), 1)
    plain_loss(ddp, rank, 1).backward()
    for name, parameter in ddp.module.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-9, atol=1e-12)


def power_sgd() -> None:
    for hook in (
        powerSGD_hook.powerSGD_hook,
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ):
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=1)
        torch.manual_seed(0)
        ddp = DistributedDataParallel(Layers())
        ddp.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = ddp(batch(dist.get_rank(), 0, 4, 8).float()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0]
        assert state.iter >= 2
        for parameter in ddp.parameters():
            assert_alike(parameter.detach())


def checks() -> None:
    ddp = wrapped()
    with pytest.raises(TypeError, match="int as its hook"):
        ddp.register_comm_hook(None, 1)  # type: ignore[arg-type]

    def wrong_bucket(state: object, bucket: int) -> Any: ...

    def wrong_return(state: object, bucket: dist.GradBucket) -> int:
        return 1

    wrong_bucket.__annotations__["bucket"] = int
    wrong_return.__annotations__["return"] = int
    for hook in (wrong_bucket, wrong_return):
        with pytest.raises(ValueError, match="annotate it with these types or not at all"):
            ddp.register_comm_hook(None, hook)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError, match="second communication hook"):
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(InvalidArgument, match="ALLREDUCE and FP16_COMPRESS"):
        wrapped()._register_builtin_comm_hook(7)  # type: ignore[arg-type]


def hook_that_raises() -> None:
    """In step 1, on all ranks; the steps after it are good."""
    ddp, step = wrapped(), 0

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if step == 1 and bucket.index() == 0:
            raise KeyError("own")
        return default_hooks.allreduce_hook(None, bucket)

    del hook.__annotations__["return"], hook.__annotations__["bucket"]
    ddp.register_comm_hook(None, hook)
    texts = []
    for step in range(4):
        wanted = expected(ddp.module, dist.get_world_size(), plain_loss, step)
        ddp.zero_grad()
        try:
            plain_loss(ddp, dist.get_rank(), step).backward()
        except BackwardError:
            assert step in (1, 2)
        except (KeyError, RuntimeError) as error:
            texts.append((step, "own" in str(error)))
        else:
            if step != 2:
                assert_gradients(ddp, wanted)
    assert texts == [(1, True)]


def hook_that_looks_at_the_model() -> None:
    ddp = wrapped()
    backwards = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        backwards.append(ddp.stats().backward)
        assert ddp._get_ddp_logging_data()["comm_hook"]
        with pytest.raises(InvalidArgument, match="a second communication hook"):
            ddp.register_comm_hook(None, hook)
        return default_hooks.allreduce_hook(None, bucket)

    del hook.__annotations__["return"], hook.__annotations__["bucket"]
    ddp.register_comm_hook(None, hook)
    check_steps(ddp, plain_loss)
    assert sorted(set(backwards)) == [0, 1, 2]


def hooks_beside_other_options() -> None:
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        ddp = wrapped(**options)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        check_steps(ddp, plain_loss)
    ddp = wrapped()
    plain_loss(ddp, dist.get_rank(), 0).backward()  # registered after a plan was made
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    check_steps(ddp, plain_loss)
    ddp._set_static_graph()
    check_steps(ddp, plain_loss)
    ddp.set_loss_weight(2.0)
    check_steps(ddp, plain_loss)


def optimizers_in_backward() -> None:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    alone = seeded(Layers)
    fused, in_backward = wrapped(), DistributedDataParallel(copy.deepcopy(alone))
    fused._register_fused_optim(torch.optim.SGD, lr=0.1)
    _apply_optimizer_in_backward(torch.optim.SGD, in_backward.parameters(), {"lr": 0.1})
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for r in range(world_size):
            (plain_loss(alone, r, step) / world_size).backward()
        optimizer.step()
        for ddp in (fused, in_backward):
            ddp.zero_grad()
            plain_loss(ddp, rank, step).backward()
            for own, wanted in zip(ddp.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12)
        assert all(parameter.grad is None for parameter in in_backward.parameters())


CHECKS = [
    hooks_that_average,
    builtin_hooks,
    no_averages,
    local_sgd,
    power_sgd,
    checks,
    hook_that_raises,
    hook_that_looks_at_the_model,
    hooks_beside_other_options,
    optimizers_in_backward,
]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        if check is power_sgd and ranks.on_simulated_device():
            continue  # torch's hook makes the host wait for CUDA, and is wrong elsewhere
        check()


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("lazy")])
def test_comm_hooks(backend: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend=backend))
