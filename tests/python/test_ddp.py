# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel over the backend, against one process that sees all data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ranks

STEPS = 5
BATCH = 8


class Model(nn.Module):
    """Two paths, of which a batch may take one, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.left = nn.Linear(16, 3)
        self.right = nn.Linear(16, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, *, use_right: bool) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(x)))
        return self.right(hidden) if use_right else self.left(hidden)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield (
            torch.randn(BATCH, 6, generator=generator),
            torch.randint(0, 3, (BATCH,), generator=generator),
        )


def train(model: nn.Module, rank: int, world_size: int, *, both_paths: bool) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(batches()):
        own = slice(rank * BATCH // world_size, (rank + 1) * BATCH // world_size)
        optimizer.zero_grad()
        outputs = model(x[own], use_right=both_paths and step % 2 == 1)
        nn.functional.cross_entropy(outputs, y[own]).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_with_ddp(rank: int, world_size: int, unused: bool) -> list[list[float]]:
    model = Model()
    if rank != 0:  # the wrapper must bring rank 0's
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    ddp = DistributedDataParallel(model, find_unused_parameters=unused)
    trained = train(ddp, rank, world_size, both_paths=unused)
    for tensor in trained:
        everyone = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(everyone, tensor)
        assert all(torch.equal(tensor, other) for other in everyone)
    return [tensor.flatten().tolist() for tensor in trained]


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ddp_equals_training_in_one_process(world_size: int, unused: bool) -> None:
    alone = Model()
    torch.set_num_threads(1)
    if unused:  # as DDP: a parameter that no rank used keeps its gradient of None
        expected = train(alone, 0, 1, both_paths=True)
    else:
        alone.right.requires_grad_(False)
        expected = train(alone, 0, 1, both_paths=False)
    results = ranks.run(train_with_ddp if unused else train_left_with_ddp, world_size, unused)
    for result in results:
        for values, tensor in zip(result, expected, strict=True):
            # The means of the parts are summed in another order than the mean of the whole.
            torch.testing.assert_close(torch.tensor(values), tensor.flatten(), rtol=1e-5, atol=1e-6)


def train_left_with_ddp(rank: int, world_size: int, unused: bool) -> list[list[float]]:
    model = Model()
    model.right.requires_grad_(False)
    trained = train(
        DistributedDataParallel(model, find_unused_parameters=unused),
        rank,
        world_size,
        both_paths=False,
    )
    return [tensor.flatten().tolist() for tensor in trained]


def sum_of_exact_gradients(rank: int, world_size: int) -> list[float]:
    """Whole numbers in float32: sums, halves and products are exact in any order."""
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(8.0).view(2, 4))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.arange(16.0).view(4, 4)[2 * rank : 2 * rank + 2] + step
        ddp(x).sum().backward()
        optimizer.step()
    return model.weight.flatten().tolist()


def test_ddp_is_bit_for_bit_where_arithmetic_is_exact() -> None:
    weight = torch.arange(8.0).view(2, 4)
    for step in range(3):
        x = torch.arange(16.0).view(4, 4) + step
        gradient = x.sum(0).expand(2, 4) / 2
        weight = weight - 0.5 * gradient
    for result in ranks.run(sum_of_exact_gradients, 2):
        assert result == weight.flatten().tolist()


class Squares(Dataset[Tensor]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index % 5))


def train_with_workers(rank: int, world_size: int) -> float:
    del rank
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    total = 0.0
    for _ in range(2):  # the workers are forked while the group is in use
        for x in DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            loss = ddp(x).sum()
            loss.backward()
            total += float(x.sum())
            dist.all_reduce(torch.ones(1))
    return total / world_size


def test_data_loader_workers_are_forked_beside_training() -> None:
    first, second = ranks.run(train_with_workers, 2)
    assert first == second


def test_gradient_accumulation_and_hooks() -> None:
    ranks.run(accumulate, 2)


def accumulate(rank: int, world_size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = nn.Linear(2, 1, bias=False)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, bf16_compress_hook)
    x = torch.full((1, 2), float(rank + 1))
    with ddp.no_sync():
        ddp(x).sum().backward()
    assert torch.equal(model.weight.grad, x)
    ddp(x).sum().backward()
    mean = sum(2.0 * (r + 1) for r in range(world_size)) / world_size
    assert torch.equal(model.weight.grad, torch.full((1, 2), mean))
