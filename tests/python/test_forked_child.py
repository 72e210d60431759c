# SPDX-License-Identifier: Apache-2.0
"""Children made by fork() have parameters, gradients and symmetric tensors of their own."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim.zero_redundancy_optimizer import Gradients
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ranks

MODES: list[Gradients] = ["full", "shard"]


def in_child(body: Callable[[], object]) -> None:
    """Runs ``body`` in a forked child, which must come through."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + ranks.DEADLINE_S / 2
    ended, status = os.waitpid(pid, os.WNOHANG)
    while ended == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if ended == 0:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise AssertionError("the child hangs")
    assert status == 0, status


class Training:
    """A model of 100 KB with its optimizer, and a tensor in symmetric memory."""

    def __init__(self, rank: int, gradients: Gradients) -> None:
        torch.manual_seed(1)
        self.rank = rank
        self.model = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 10))
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = ZeroRedundancyOptimizer(
            self.ddp.parameters(), torch.optim.AdamW, lr=0.01, gradients=gradients
        )
        self.symmetric = farandole.symmetric_empty(5000)
        self.steps = 0

    def backward(self) -> None:
        generator = torch.Generator().manual_seed(10 * self.steps + self.rank)
        self.optimizer.zero_grad()
        self.ddp(torch.randn(4, 100, generator=generator)).square().mean().backward()
        self.symmetric.fill_(self.steps)

    def step(self) -> None:
        self.optimizer.step()
        dist.all_reduce(self.symmetric)
        self.steps += 1

    def tensors(self) -> list[Tensor]:
        gradients = [p.grad for p in self.ddp.parameters() if p.grad is not None]
        return [self.symmetric, *(p.detach() for p in self.ddp.parameters()), *gradients]


@torch.no_grad()
def scribble(training: Training, wanted: list[Tensor]) -> None:
    """What the child does: all is there, and may be overwritten."""
    for tensor, before in zip(training.tensors(), wanted, strict=True):
        assert torch.equal(tensor, before)
        tensor.fill_(7)
        assert bool((tensor == 7).all())
    training.model.load_state_dict({k: v * 2 for k, v in training.model.state_dict().items()})
    assert float(training.model(torch.ones(2, 100)).sum()) > 1000
    in_child(lambda: training.symmetric.fill_(8))
    assert float(training.symmetric[0]) == 7


class Touching(Dataset[Tensor]):
    """Its items come out of a model that each worker changes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 8

    @torch.no_grad()
    def __getitem__(self, index: int) -> Tensor:
        for p in self.model.parameters():
            p.fill_(index)
            if p.grad is not None:
                p.grad.fill_(index)
        return self.model(torch.ones(100))


def train(rank: int, gradients: Gradients, forks: bool) -> list[Tensor]:
    training = Training(rank, gradients)
    for step in range(4):
        training.backward()
        if forks:
            wanted = [tensor.clone() for tensor in training.tensors()]
            dist.barrier()
            if step % 2 == rank:
                in_child(lambda wanted=wanted: scribble(training, wanted))  # type: ignore[misc]
            else:
                items = DataLoader(
                    Touching(training.model), num_workers=2, multiprocessing_context="fork"
                )
                assert len(list(items)) == 8
            dist.barrier()
            for tensor, before in zip(training.tensors(), wanted, strict=True):
                assert torch.equal(tensor, before)
        training.step()
    return training.tensors()


def forks_change_nothing(rank: int, world_size: int) -> None:
    for mode in MODES:
        wanted = train(rank, mode, forks=False)
        for tensor, right in zip(train(rank, mode, forks=True), wanted, strict=True):
            assert torch.equal(tensor, right)


def outlives_the_parents_group(rank: int, world_size: int) -> None:
    """A child that goes on when its parent has let go of everything."""
    tensor = farandole.symmetric_empty(100_000)
    tensor.fill_(rank + 1)
    dist.barrier()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent has closed it
        good = bool((tensor == rank + 1).all())
        tensor.fill_(9)
        os._exit(0 if good and bool((tensor == 9).all()) else 1)
    os.close(reader)
    del tensor
    dist.destroy_process_group()
    os.close(writer)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("body", [forks_change_nothing, outlives_the_parents_group])
def test_forked_children(body: Callable[[int, int], None]) -> None:
    ranks.run(body, 2)
