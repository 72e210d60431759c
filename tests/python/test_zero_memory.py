# SPDX-License-Identifier: Apache-2.0
"""Who may hold the memory of a parameter that a sharded optimizer steps.

The optimizer keeps parameters in memory of its own. Memory that the program laid out itself gets
the new values, and what a program keeps of a parameter that it has replaced does not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, InvalidArgument, ZeroRedundancyOptimizer
from torch import Tensor, nn, optim

import ranks
from zero_oracle import PAIRS, Bowl, check_parameters, loss

SHAPES = [((33, 17), torch.float32), ((1031,), torch.float32), ((), torch.float32)]


class Adam(optim.Adam):
    """Stepped by its own step(), on the shards of a rank."""


OPTIMIZERS: list[type[optim.Optimizer]] = [optim.SGD, optim.AdamW, Adam]


def bowl() -> nn.Module:
    return Bowl(SHAPES)


class Training:
    """A sharded optimizer, and torch's in one process with the averages of all ranks."""

    def __init__(self, model: nn.Module, optimizer: type[optim.Optimizer], gradients: Any) -> None:
        self.model, self.alone = model, copy.deepcopy(model)
        self.ddp = DistributedDataParallel(model)
        self.sharded = self.make(optimizer, gradients)
        self.unsharded = optimizer(self.alone.parameters(), lr=0.1)
        self.steps = 0

    def make(self, optimizer: type[optim.Optimizer], gradients: Any) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(
            self.ddp.parameters(), optimizer, gradients=gradients, lr=0.1
        )

    def step(self) -> None:
        world_size = dist.get_world_size()
        self.sharded.zero_grad()
        self.unsharded.zero_grad()
        loss(self.ddp, dist.get_rank(), self.steps).backward()
        for rank in range(world_size):
            (loss(self.alone, rank, self.steps) / world_size).backward()
        self.sharded.step()
        self.unsharded.step()
        self.steps += 1
        check_parameters(self.model, self.alone, f"step {self.steps}")


def flatten(model: nn.Module) -> Tensor:
    """Makes the parameters views of one vector."""
    parameters = list(model.parameters())
    flat = torch.cat([each.detach().flatten() for each in parameters])
    sizes = [each.numel() for each in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.data = part.view_as(parameter)
    return flat


def trainings(gradients: Any) -> Iterator[tuple[type[optim.Optimizer], Any]]:
    for optimizer in OPTIMIZERS:
        yield optimizer, gradients


def parameters_are_views_of_one_vector(gradients: Any) -> None:
    for optimizer, mode in trainings(gradients):
        model = bowl()
        flat = flatten(model)
        training = Training(model, optimizer, mode)
        for step in range(4):
            training.step()
            now = torch.cat([each.detach().flatten() for each in model.parameters()])
            assert torch.equal(flat, now)
            if step == 1:  # as a program that averages its models does
                flat.mul_(0.5)
                with torch.no_grad():
                    for each in training.alone.parameters():
                        each.mul_(0.5)
            if step == 2:
                training.sharded.rebuild()


def a_state_dict_follows(gradients: Any) -> None:
    training = Training(bowl(), optim.AdamW, gradients)
    before = training.model.state_dict()
    training.step()
    assert all(torch.equal(before[n], p) for n, p in training.model.named_parameters())
    loaded = {name: value.clone() + 1 for name, value in before.items()}
    for name, parameter in training.model.named_parameters():
        parameter.data = loaded[name]
    training.alone.load_state_dict(loaded)
    for _ in range(2):
        training.step()
        assert all(torch.equal(loaded[n], p) for n, p in training.model.named_parameters())


def snapshots_keep_their_values(gradients: Any) -> None:
    for optimizer, mode in trainings(gradients):
        training = Training(bowl(), optimizer, mode)
        kept: list[tuple[Any, Any]] = []
        for step in range(4):
            training.step()
            for memory, values in kept:
                assert memory.tolist() == values
            for parameter in training.model.parameters():
                data: Any = parameter.data
                if step % 2 and ranks.share_memory():
                    data = parameter.detach().numpy()
                kept.append((data, data.tolist()))
                parameter.data = parameter.data.clone()


def parameters_are_swapped_and_back(gradients: Any) -> None:
    """With an average of them, as for an evaluation."""
    training = Training(bowl(), optim.SGD, gradients)
    for _ in range(3):
        training.step()
        own = [each.data for each in training.model.parameters()]
        values = [each.clone() for each in own]
        for parameter in training.model.parameters():
            parameter.data = torch.zeros_like(parameter.data)
        for parameter, data, value in zip(training.model.parameters(), own, values, strict=True):
            assert torch.equal(data, value)
            parameter.data = data
        training.step()


def a_second_optimizer_takes_over(gradients: Any) -> None:
    training = Training(bowl(), optim.SGD, gradients)
    for _ in range(3):
        training.step()
        training.sharded = training.make(optim.SGD, gradients)  # while the first one lives


def memory_of_other_processes_stays(gradients: Any) -> None:
    if not ranks.share_memory() and dist.get_backend() != "gloo":
        return
    model = bowl().share_memory()
    training = Training(model, optim.SGD, gradients)
    for _ in range(2):
        training.step()
        assert all(each.is_shared() for each in model.parameters())
    model.share_memory()


def a_second_model_shares_the_parameters(gradients: Any) -> None:
    """Sums of its gradients reach a shard only where ranks read each other's memory."""
    training = Training(bowl(), optim.SGD, gradients)
    training.step()
    second = DistributedDataParallel(training.model)
    if gradients == "full" or ranks.share_memory():
        training.step()
    else:
        with pytest.raises(InvalidArgument, match="sharded-shared-parameter"):
            loss(training.ddp, dist.get_rank(), 1).backward()
        with pytest.raises(InvalidArgument, match="sharded-shared-parameter"):
            loss(second, dist.get_rank(), 1).backward()
    del second
    training.step()


CHECKS: list[Callable[[Any], None]] = [
    a_second_model_shares_the_parameters,
    parameters_are_views_of_one_vector,
    a_state_dict_follows,
    snapshots_keep_their_values,
    parameters_are_swapped_and_back,
    a_second_optimizer_takes_over,
    memory_of_other_processes_stays,
]


def run_checks(rank: int, world_size: int, gradients: str) -> None:
    for check in CHECKS:
        check(gradients)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_parameters_that_others_hold(backend: str, gradients: str) -> None:
    ranks.run(run_checks, 2, gradients, setup=ranks.Setup(backend=backend))
