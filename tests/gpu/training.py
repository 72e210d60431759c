# SPDX-License-Identifier: Apache-2.0
"""Trainings on a device, and the same in one process on the CPU, which they must equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ddp_models
from ddp_oracle import batch
from rank_set import World

STEPS = 4
SCALE = 2.0**127  # of a scaler at the start
OVERFLOWING = 8  # what a loss is multiplied by, so that its gradients overflow in the first steps
Wrap = Callable[[nn.Module], nn.Module]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Task:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a batch of one rank


TASKS = {
    "layers": Task(ddp_models.Layers, (6, 8)),
    "convolutions": Task(ddp_models.Convolutional, (6, 192)),
    "transformer": Task(ddp_models.Transformer, (4, 5, 8)),
    "frozen layers": Task(ddp_models.Frozen, (6, 8)),
}


def seeded(task: Task, device: str, dtype: torch.dtype) -> nn.Module:
    """The same model everywhere. Made there: a move to some devices parts tied weights."""
    torch.manual_seed(0)
    state = task.model().state_dict()
    with torch.device(device):
        model = task.model()
    model.load_state_dict(state)
    return model.to(dtype)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    values = output[0] if isinstance(output, tuple) else output
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    return values.square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


ADAMW: dict[str, Any] = {"lr": 1e-2, "eps": 1e-3}  # a tiny eps makes rounding errors large


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **ADAMW)


@dataclass
class Training:
    """How a task is trained. Two passes are accumulated in each step if `accumulates`."""

    task: Task
    make_optimizer: MakeOptimizer = sgd
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None
    accumulates: bool = False
    scaler: Callable[[str], Any] | None = None
    scale: float = 0.0  # at the end

    def batches(self, rank: int, step: int) -> list[Tensor]:
        passes = 2 if self.accumulates else 1
        return [
            batch(rank, 2 * step + each, *self.task.shape).to(self.dtype) for each in range(passes)
        ]

    def on_device(self, rank: int, world: World, wrap: Wrap) -> list[Tensor]:
        """The parameters of this rank at the end, on the CPU."""
        model = wrap(seeded(self.task, world.type, self.dtype))
        optimizer = self.make_optimizer(model)
        scaler = self.scaler(world.type) if self.scaler else None
        for step in range(STEPS):
            optimizer.zero_grad()
            own = [each.to(world.type) for each in self.batches(rank, step)]
            with model.no_sync() if self.accumulates else contextlib.nullcontext():
                for each in own[:-1]:
                    self.backward(model, each, world.type, scaler)
            self.backward(model, own[-1], world.type, scaler)
            self.update(optimizer, scaler)
        return [each.detach().cpu() for each in model.parameters()]

    def alone(self, size: int, device: str = "cpu") -> list[Tensor]:
        """What it must be: one process averages the gradients of all ranks' batches."""
        model = seeded(self.task, device, self.dtype)
        optimizer = self.make_optimizer(model)
        scaler = self.scaler(device) if self.scaler else None
        for step in range(STEPS):
            optimizer.zero_grad()
            for rank in range(size):
                for each in self.batches(rank, step):
                    self.backward(model, each.to(device), device, scaler)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= size
            self.update(optimizer, scaler)
        return [each.detach().cpu() for each in model.parameters()]

    def backward(self, model: nn.Module, x: Tensor, device: str, scaler: Any) -> None:
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            loss = loss_of(model, x)
        (loss if scaler is None else scaler.scale(OVERFLOWING * loss)).backward()

    def update(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
            self.scale = scaler.get_scale()


def assert_equal(got: list[Tensor], wanted: list[Tensor], tolerance: float, world: World) -> None:
    """To the oracle within a tolerance, to the other ranks bit for bit."""
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    for each in got:
        everyone = [torch.empty_like(each) for _ in range(world.size)]
        dist.all_gather(everyone, each.contiguous())
        assert all(torch.equal(each, other) for other in everyone), "ranks differ"
