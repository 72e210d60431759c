# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that all ranks map."""

from __future__ import annotations

import gc
import random

import farandole
import pytest
import torch
import torch.distributed as dist

import ranks


def reduced(rank: int, world_size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = farandole.symmetric_empty(3, 70_001, dtype=dtype)
        assert (tensor.shape, tensor.dtype) == ((3, 70_001), dtype)
        assert tensor.is_contiguous()
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full_like(tensor, world_size * (world_size + 1) // 2))
        tensor[1].fill_(rank)
        dist.all_reduce(tensor[1])  # a part of it
        assert tensor[1, 0].item() == sum(range(world_size))
        tensor.fill_(rank)
        dist.broadcast(tensor, src=world_size - 1)
        assert tensor[2, 5].item() == world_size - 1
    assert farandole.symmetric_empty((0, 4)).shape == (0, 4)
    assert farandole.symmetric_empty([5], dtype=torch.bool).dtype == torch.bool


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_collectives_on_symmetric_tensors(world_size: int) -> None:
    ranks.run(reduced, world_size)


def released(rank: int, world_size: int) -> torch.Tensor | None:
    tensors = [farandole.symmetric_empty(1000 + i) for i in range(20)]
    order = list(range(20))
    random.Random(rank).shuffle(order)  # another one on each rank
    for i in order[:10]:
        tensors[i] = torch.empty(0)
    gc.collect()
    for tensor in tensors:
        # Some ranks have let go of it: the others' memory goes on as plain memory.
        own = tensor if tensor.numel() else torch.empty(1000)
        own.fill_(rank)
    kept = farandole.symmetric_empty(50)
    dist.all_reduce(kept.fill_(1))
    dist.destroy_process_group()
    assert torch.equal(kept, torch.full((50,), float(world_size)))  # after the group
    del kept
    return None


def test_they_may_be_let_go_in_any_order_and_after_the_group() -> None:
    ranks.run(released, 3)


def half_released(rank: int, world_size: int) -> None:
    tensor = farandole.symmetric_empty(100_000).fill_(1)
    if rank == 0:
        tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((100_000,), float(world_size)))


def test_a_collective_where_one_rank_has_let_go() -> None:
    ranks.run(half_released, 2)


def allocated_by_torch(rank: int, world_size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert not backend.supports_tensor_alloc(torch.device("cuda:0"))
    tensor = backend.allocate_tensor(1000, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert (tensor.shape, tensor.dtype, tensor.requires_grad) == ((1000,), torch.bfloat16, False)
    dist.all_reduce(tensor.fill_(rank))
    assert tensor[0].item() == sum(range(world_size))
    with pytest.raises(farandole.NotSupported, match="cannot allocate on cuda"):
        backend.allocate_tensor(10, dtype=torch.float32, device=torch.device("cuda:0"))
    with pytest.raises(farandole.MismatchError):
        backend.allocate_tensor(10 + rank, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="does not support getMemAllocator"):
        _ = backend.mem_allocator


def test_torch_allocates_symmetric_tensors() -> None:
    ranks.run(allocated_by_torch, 2)


def wrong(rank: int, world_size: int) -> None:
    del world_size
    with pytest.raises(farandole.InvalidArgument, match="negative size"):
        farandole.symmetric_empty(-1)
    with pytest.raises(farandole.MismatchError):
        farandole.symmetric_empty(10 + rank)
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(farandole.InvalidArgument, match="is not farandole"):
        farandole.symmetric_empty(10, group=gloo)
    dist.barrier()


def test_misuse() -> None:
    ranks.run(wrong, 2)
