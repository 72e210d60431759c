# SPDX-License-Identifier: Apache-2.0
"""What a sharded optimizer should do: what torch's does in one process with averaged gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim.fused_rules import RULES
from torch import Tensor, nn
from torch.optim import Optimizer

import ranks
import sim

SHAPES: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((33, 17), torch.float32),
    ((1031,), torch.float32),
    ((), torch.float32),
    ((4, 7, 3, 3), torch.float32),
    ((0,), torch.float32),
    ((5, 3), torch.float64),
    ((), torch.float64),
    ((129,), torch.float64),
]
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
}

DEVICES = [f"sim-{schedule}" for schedule in sim.SCHEDULES]
"""Backends with parameters on the simulated device, under each of its schedules."""

needs_devices = pytest.mark.skipif(not sim.NCCL.exists(), reason="built without nccl.h")

HOST_PAIRS = [
    ("farandole", "full"),
    ("farandole", "shard"),
    ("hosts", "shard"),
    ("gloo", "shard"),
    *([("gloo", "full")] if ranks.WHOLE_MATRIX else []),
]
"""Backends and gradient modes, of parameters on the CPU."""

PAIRS = [
    *HOST_PAIRS,
    *(
        pytest.param(backend, gradients, marks=needs_devices)
        for number, backend in enumerate(DEVICES)
        for gradients in ("full", "shard")
        if ranks.WHOLE_MATRIX or (number % 2 == 0) == (gradients == "full")
    ),
]
"""And those on accelerators."""

Groups = Callable[[nn.Module], Any]
"""What an optimizer of a model is given."""


class Bowl(nn.Module):
    """The loss of each element is a parabola that each rank moves in each step.

    Gradients are element-wise, so that their bits do not depend on where parameters lie in memory.
    """

    def __init__(self, shapes: Sequence[tuple[tuple[int, ...], torch.dtype]] = SHAPES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.weights = nn.ParameterList()
        for shape, dtype in shapes:
            weight = _normal(shape, generator, dtype)
            if weight.dim() == 4:
                weight = weight.to(memory_format=torch.channels_last)
            self.weights.append(nn.Parameter(weight.to(torch.get_default_device())))

    def forward(self, targets: list[Tensor]) -> Tensor:
        losses = [
            (weight - target.to(weight.device)).square().sum().double() / 2
            for weight, target in zip(self.weights, targets, strict=True)
            if weight.requires_grad
        ]
        return torch.stack(losses).sum()


def targets(model: nn.Module, rank: int, step: int) -> list[Tensor]:
    """Where the parabolas of a rank are, wherever that is asked."""
    return _targets(tuple((tuple(p.shape), p.dtype) for p in model.parameters()), rank, step)


@lru_cache(maxsize=1000)
def _targets(
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...], rank: int, step: int
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [_normal(shape, generator, dtype) for shape, dtype in shapes]


def _normal(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """The same numbers whatever the default device is."""
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(targets(model, rank, step))


@torch.no_grad()
def average_gradients(bowl: nn.Module, world_size: int, step: int) -> None:
    """Adds the mean over ranks, summed in their order, to the gradients of a Bowl.

    That of a parabola is its argument, to the last bit.
    """
    every = [targets(bowl, rank, step) for rank in range(world_size)]
    for p, *each in zip(bowl.parameters(), *every, strict=True):
        if p.requires_grad:
            total = reduce(torch.add, [p - target.to(p.device) for target in each])
            mean = total / world_size
            p.grad = mean if p.grad is None else p.grad + mean


def all_parameters(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


class Trial:
    """A sharded optimizer, and on one rank the unsharded one beside it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[Optimizer],
        *,
        gradients: str = "full",
        groups: Groups = all_parameters,
        ddp: bool = True,
        watcher: int = 0,
        **options: Any,
    ) -> None:
        self.gradients = gradients
        self.world_size = dist.get_world_size()
        self.rank = dist.get_rank()
        self.is_watched = self.rank == watcher
        self.alone = copy.deepcopy(model).cpu()
        self.model = model
        # Gradients that are not averaged are those of a DistributedDataParallel.
        self.ddp = DistributedDataParallel(model) if ddp or gradients == "shard" else None
        self.sharded = ZeroRedundancyOptimizer(
            groups(model), optimizer_class, gradients=gradients, **options
        )
        self.unsharded = optimizer_class(groups(self.alone), **options)
        self.optimizers = [self.sharded, self.unsharded]
        self.is_on_cpu = torch.get_default_device().type == "cpu"
        # Of accelerators torch's own steps have numbers in float32 tensors that the CPU's do not.
        is_as_exact = self.is_on_cpu or optimizer_class in RULES
        self.like = None if is_as_exact else torch.float32

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.sharded.zero_grad(set_to_none)
        self.unsharded.zero_grad(set_to_none)

    def backward(self, step: int) -> None:
        if self.ddp is not None:
            loss(self.ddp, self.rank, step).backward()
        else:
            average_gradients(self.model, self.world_size, step)
        if self.is_watched:
            average_gradients(self.alone, self.world_size, step)

    def step(self) -> None:
        self.sharded.step()
        if self.is_watched:
            self.step_alone()

    def step_alone(self) -> None:
        with torch.device("cpu"):
            self.unsharded.step()

    def requires_grad_has_changed(self) -> None:
        """Where gradients travel in buckets as planned, the program must say so."""
        if self.gradients == "shard" and not ranks.share_memory():
            self.sharded.rebuild()

    def train(self, steps: range) -> None:
        for step in steps:
            self.zero_grad(set_to_none=step % 3 != 1)
            self.backward(step)
            self.step()

    def check(self, text: str = "", exact: bool = False, like: torch.dtype | None = None) -> None:
        """The same as the unsharded optimizer, and the same bits on every rank."""
        self.sharded.wait()
        if self.is_watched:
            is_exact = exact and self.is_on_cpu  # whose kernels we know
            check_parameters(self.model, self.alone, text, is_exact, like or self.like)
        assert_same_everywhere(self.model, text)


def check_parameters(
    model: nn.Module,
    wanted: nn.Module,
    text: str = "",
    exact: bool = False,
    like: torch.dtype | None = None,
) -> None:
    for (name, sharded), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
        own = sharded.detach().cpu()
        if exact:
            assert torch.equal(own, other), f"{text}: {name} {(own - other).abs().max()}"
        else:
            check_close(own, other, f"{text}: {name}", like)


def check_close(own: Tensor, other: Tensor, text: str, like: torch.dtype | None = None) -> None:
    """Within the tolerance of ``like``, or else of their own dtype."""
    own, other = own.detach().cpu(), other.detach().cpu()
    tolerance = TOLERANCE.get(like or own.dtype, TOLERANCE[torch.float32])
    torch.testing.assert_close(
        own, other, msg=lambda difference: f"{text}\n{difference}", **tolerance
    )


def assert_same_everywhere(model: nn.Module, text: str = "") -> None:
    """Every rank has the same bits."""
    flat = torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    for rank, other in enumerate(everyone):
        assert torch.equal(flat, other), f"{text}: not as on rank {rank}"
