# SPDX-License-Identifier: Apache-2.0
"""Trainings on the device equal that of one process on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed.optim
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

import ddp_models
import ddp_oracle
from rank_set import LeftOut, RankSet, World
from training import ADAMW, SCALE, TASKS, MakeOptimizer, Training, Wrap, adamw, assert_equal

WRAPS: dict[str, Wrap] = {
    "Farandole": farandole.DistributedDataParallel,
    "Farandole, static graph": functools.partial(
        farandole.DistributedDataParallel, static_graph=True
    ),
    "Farandole, tiny buckets": functools.partial(
        farandole.DistributedDataParallel, bucket_cap_mb=1e-4
    ),
    "torch's over Farandole": functools.partial(
        TorchDistributedDataParallel, gradient_as_bucket_view=True
    ),
}
EXACT = 1e-9  # in float64, whose sums differ in order


def _ddp(rank: int, world: World, wrap: str, task: str, accumulates: bool) -> None:
    training = Training(TASKS[task], accumulates=accumulates)
    got = training.on_device(rank, world, WRAPS[wrap])
    assert_equal(got, training.alone(world.size), EXACT, world)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_ddp_equals_one_process(group: RankSet, wrap: str, task: str) -> None:
    group.run(_ddp, wrap, task, False)


@pytest.mark.parametrize("wrap", ["Farandole", "torch's over Farandole"])
def test_ddp_accumulates_under_no_sync(group: RankSet, wrap: str) -> None:
    group.run(_ddp, wrap, "layers", True)


def _unused(rank: int, world: World) -> None:
    """Each rank uses another expert; some are used by none."""
    experts = ddp_oracle.seeded(ddp_models.Experts)

    def loss(model: nn.Module, of: int, step: int) -> torch.Tensor:
        device = next(model.parameters()).device
        routed = model(ddp_oracle.batch(of, step, 6, 8).to(device), of % 2)
        return routed.mixed.square().mean() + routed.balance

    wanted = ddp_oracle.expected(experts, world.size, loss, 0)
    model = farandole.DistributedDataParallel(experts.to(world.type), find_unused_parameters=True)
    loss(model, rank, 0).backward()
    for name, gradient in ddp_oracle.gradients(model).items():
        if wanted[name] is None:
            assert gradient is None, name
        else:
            torch.testing.assert_close(gradient.cpu(), wanted[name], rtol=EXACT, atol=EXACT)


def test_parameters_may_be_unused(group: RankSet) -> None:
    group.run(_unused)


def _autocast(rank: int, world: World, wrap: str, dtype: torch.dtype) -> None:
    """The oracle runs on the device too: half types round there as they do there."""
    training = Training(TASKS["transformer"], dtype=torch.float32, autocast=dtype)
    got = training.on_device(rank, world, WRAPS[wrap])
    assert_equal(got, training.alone(world.size, world.type), 1e-3, world)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wrap", ["Farandole", "torch's over Farandole"])
def test_autocast_equals_one_process(group: RankSet, wrap: str, dtype: torch.dtype) -> None:
    group.run(_autocast, wrap, dtype)


SCALERS: dict[str, Callable[[str], Any]] = {
    "Farandole": lambda device: farandole.GradScaler(device, init_scale=SCALE),
    "torch": lambda device: torch.amp.GradScaler(device, init_scale=SCALE),
}


def _scaled(rank: int, world: World, scaler: str) -> None:
    task = TASKS["layers"]
    training = Training(task, adamw, dtype=torch.float32, scaler=SCALERS[scaler])
    try:
        got = training.on_device(rank, world, WRAPS["Farandole"])
    except farandole.NotSupported as refusal:
        raise LeftOut(str(refusal)) from refusal
    oracle = Training(task, adamw, dtype=torch.float32, scaler=SCALERS["torch"])
    assert_equal(got, oracle.alone(world.size), 1e-5, world)
    assert training.scale == oracle.scale < SCALE


@pytest.mark.parametrize("scaler", SCALERS)
def test_a_grad_scaler_skips_steps_that_overflow(group: RankSet, scaler: str) -> None:
    group.run(_scaled, scaler)


def sharded(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return farandole.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, **options, **ADAMW
    )


def torch_sharded(model: nn.Module) -> torch.optim.Optimizer:
    return torch.distributed.optim.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, **ADAMW
    )


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Farandole, full": functools.partial(sharded, gradients="full"),
    "Farandole, shard": functools.partial(sharded, gradients="shard"),
    "torch's over Farandole": torch_sharded,
}


def _zero(rank: int, world: World, optimizer: str, task: str) -> None:
    training = Training(TASKS[task], OPTIMIZERS[optimizer])
    got = training.on_device(rank, world, WRAPS["Farandole"])
    oracle = Training(TASKS[task], adamw)
    assert_equal(got, oracle.alone(world.size), EXACT, world)


@pytest.mark.parametrize("task", ["layers", "transformer"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sharded_optimizers_equal_one_process(group: RankSet, optimizer: str, task: str) -> None:
    group.run(_zero, optimizer, task)


def _host_waits(rank: int, world: World) -> None:
    if world.type != "sim":
        raise LeftOut("only the simulated device counts waits of the host")
    if world.is_staged:
        raise LeftOut("the host waits for copies of staged tensors")
    module = world.accelerator.module
    model = farandole.DistributedDataParallel(TASKS["layers"].model().to(world.type))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device=world.type)
    before = 0
    for step in range(5):
        if step == 2:
            before = module.host_waits()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert module.host_waits() == before


def test_no_step_of_ddp_waits_on_the_host(group: RankSet) -> None:
    group.run(_host_waits)
