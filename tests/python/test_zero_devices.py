# SPDX-License-Identifier: Apache-2.0
"""farandole.ZeroRedundancyOptimizer and GradScaler with parameters on accelerators.

What they have in common with the CPU is in the other files, with ``zero_oracle.PAIRS``.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim import LAMB, LARS
from torch import nn, optim
from torch.amp import GradScaler as TorchGradScaler

import ranks
import sim
from zero_oracle import DEVICES, Bowl, Trial, needs_devices

pytestmark = needs_devices

CASES: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.AdamW, {"lr": 0.01}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (LAMB, {"lr": 0.01}),
    (LARS, {"lr": 0.1, "weight_decay": 0.01}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
]


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))


def _waits(rank: int, world_size: int, gradients: Any) -> None:
    """A steady step never waits for the device."""
    torch.set_default_device("cpu")  # as programs have it: torch's counts of steps are there
    device = torch.device("sim", rank)
    for optimizer, options in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            model = DistributedDataParallel(_model().to(device, dtype))
            sharded = ZeroRedundancyOptimizer(
                model.parameters(), optimizer, gradients=gradients, **options
            )
            inputs = torch.randn(4, 7).to(device, dtype)
            for step in range(5):
                sharded.zero_grad()
                model(inputs).square().mean().backward()
                before = sim.host_waits()
                sim.take_waiting_operators()
                sharded.clip_grad_norm_(0.5)
                sharded.step()
                if step >= 2:
                    waits = sim.host_waits() - before
                    operators = sim.take_waiting_operators()
                    assert waits == 0, f"{optimizer.__name__} {dtype}: {waits}: {operators}"


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_a_steady_step_waits_for_nothing(backend: str, gradients: str) -> None:
    ranks.run(_waits, 2, gradients, setup=ranks.Setup(backend=backend))


def _scaled(rank: int, world_size: int, gradients: Any) -> None:
    """Under autocast, with a scale: as torch in one process, and the host reads one flag a step."""
    torch.set_default_device("cpu")
    device = torch.device("sim", rank)
    own, alone = _model(), _model()
    model = DistributedDataParallel(own.to(device))
    sharded = ZeroRedundancyOptimizer(
        model.parameters(), optim.AdamW, gradients=gradients, lr=0.01, eps=1e-3
    )
    unsharded = optim.AdamW(alone.parameters(), lr=0.01, eps=1e-3)
    scaler, torchs = farandole.GradScaler(init_scale=256.0), TorchGradScaler("cpu", 256.0)
    batches = torch.randn(6, world_size, 4, 7)
    for step, batch in enumerate(batches):
        inputs = batch[rank].to(device)
        sharded.zero_grad()
        unsharded.zero_grad()
        with farandole.autocast(dtype="bf16"):  # of the accelerator
            output = model(inputs)
        assert output.dtype == torch.bfloat16
        scaler.scale(output.float().square().mean()).backward()
        before = sim.host_waits()
        sim.take_waiting_operators()
        scaler.step(sharded)
        scaler.update()
        if step >= 2:
            waits, operators = sim.host_waits() - before, sim.take_waiting_operators()
            assert waits == 1, operators
        for each in batch:
            with torch.autocast("cpu", torch.bfloat16):
                output = alone(each)
            torchs.scale(output.float().square().mean() / world_size).backward()
        torchs.step(unsharded)
        torchs.update()
        assert scaler.get_scale() == torchs.get_scale()
    for p, wanted in zip(own.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), wanted.detach(), rtol=0.01, atol=0.003)


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_the_host_reads_one_flag_of_a_scaled_step(backend: str, gradients: str) -> None:
    ranks.run(_scaled, 2, gradients, setup=ranks.Setup(backend=backend))


class Dying(optim.SGD):
    """The rank that has it is killed in its second step."""

    steps = 0

    def step(self, closure: Any = None) -> None:
        super().step()
        self.steps += 1
        if self.steps == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def _dies(rank: int, world_size: int, gradients: Any) -> None:
    trial = Trial(Bowl(), optim.SGD, gradients=gradients, lr=0.1)
    trial.sharded = ZeroRedundancyOptimizer(
        trial.model.parameters(), Dying, gradients=gradients, element_wise=True, lr=0.1
    )
    trial.train(range(1))
    trial.backward(1)
    with pytest.raises(farandole.PeerFailure, match="rank 1"):
        trial.sharded.step()
    sim.take_reports()  # NCCL was aborted in the middle


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_a_rank_that_is_killed_in_a_step_is_named(backend: str, gradients: str) -> None:
    ranks.run(_dies, 3, gradients, setup=ranks.Setup(backend=backend), may_die=[1])


def _refused(rank: int, world_size: int) -> None:
    own = nn.Parameter(torch.ones(3))
    host = nn.Parameter(torch.ones(3, device="cpu"))
    with pytest.raises(farandole.InvalidArgument, match="on sim:0 and on cpu"):
        ZeroRedundancyOptimizer([own, host], optim.SGD)
    optimizer = ZeroRedundancyOptimizer([own], optim.SGD)
    with pytest.raises(farandole.InvalidArgument, match="on sim:0 and on cpu"):
        optimizer.add_param_group({"params": [host]})
    with pytest.raises(farandole.NotSupported, match="shard_over"):
        ZeroRedundancyOptimizer([own], optim.SGD, shard_over="host")
    own.grad = torch.ones(3)
    optimizer.step()
    assert own.detach().cpu().tolist() == pytest.approx([1 - 1e-3] * 3)


def test_what_cannot_be_on_an_accelerator_is_told() -> None:
    ranks.run(_refused, 1, setup=ranks.Setup(backend="sim-eager"))
