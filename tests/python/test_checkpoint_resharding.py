# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of N ranks are loaded by M: each rank gets the bits that were saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import ZeroRedundancyOptimizer
from farandole.optim import LAMB
from torch import nn, optim

import ranks

Make = Callable[[Any], ZeroRedundancyOptimizer]


def new_model(dtype: torch.dtype, seed: int) -> nn.Module:
    """One parameter is cut between the ranks that save it, others are too small."""
    torch.manual_seed(seed)
    sizes = ((300, 300), (7, 13), (5, 3))
    return nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes).to(dtype)


def sharded(kind: Any, **options: Any) -> Make:
    return lambda parameters: ZeroRedundancyOptimizer(parameters, kind, lr=0.25, **options)


OPTIMIZERS: dict[str, tuple[torch.dtype, Make]] = {
    "AdamW, bf16": (torch.bfloat16, sharded(optim.AdamW)),
    "SGD": (torch.float32, sharded(optim.SGD, momentum=0.5)),
    "LAMB": (torch.float32, sharded(LAMB)),
    "Muon": (torch.float32, sharded(optim.Muon, partition="parameters")),
    "RMSprop": (torch.float32, sharded(optim.RMSprop, momentum=0.5)),  # torch's own loop
}
SOME = {
    "AdamW, bf16": ((1, 4, 7), (2, 8)),
    "SGD": ((2, 5), (3, 6)),
    "LAMB": ((3,), (1, 5)),
    "Muon": ((4, 8), (3, 7)),
    "RMSprop": ((6,), (4,)),
}
"""Ranks that save and ranks that load: every number once at least, from and to more and fewer."""
ALL = tuple(range(1, 9))


def whole_state(net: nn.Module, optimizer: ZeroRedundancyOptimizer) -> Any:
    """Of all ranks, on rank 0. Collective."""
    optimizer.consolidate_state_dict(0)
    if dist.get_rank() != 0:
        return None
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


def made(name: str, seed: int) -> tuple[nn.Module, ZeroRedundancyOptimizer]:
    dtype, make = OPTIMIZERS[name]
    net = new_model(dtype, seed)
    return net, make(net.parameters())


def step(net: nn.Module, optimizer: ZeroRedundancyOptimizer, seed: int) -> None:
    """With the same gradients on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    for each in net.parameters():
        each.grad = torch.randint(-8, 9, each.shape, generator=generator).to(each.dtype) / 8
    optimizer.step()


def _saves(rank: int, size: int, path: str, name: str) -> None:
    net, optimizer = made(name, 0)
    for seed in (1, 2):
        step(net, optimizer, seed)
    farandole.save_checkpoint(f"{path}/{size}", model=net, optimizer=optimizer)
    state = whole_state(net, optimizer)
    if rank == 0:
        torch.save(state, f"{path}/{size}.pt")
    dist.barrier()


def _loads(rank: int, size: int, path: str, name: str, savers: tuple[int, ...]) -> None:
    for saver in savers:
        net, optimizer = made(name, 1)
        farandole.load_checkpoint(f"{path}/{saver}", model=net, optimizer=optimizer, rng=False)
        state = whole_state(net, optimizer)
        if rank == 0:
            expected = torch.load(f"{path}/{saver}.pt", weights_only=False)
            assert_same_bits(state, expected, f"{saver} to {size} ranks")
        step(net, optimizer, 3)  # training goes on


def assert_same_bits(own: Any, expected: Any, at: str) -> None:
    if isinstance(expected, torch.Tensor):
        assert own.dtype == expected.dtype, at
        assert torch.equal(own, expected), at
    elif isinstance(expected, dict):
        assert own.keys() == expected.keys(), at
        for key, value in expected.items():
            assert_same_bits(own[key], value, f"{at}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(own) == len(expected), at
        for number, pair in enumerate(zip(own, expected, strict=True)):
            assert_same_bits(*pair, f"{at}/{number}")
    else:
        assert own == expected, at


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_number_of_ranks_loads_what_any_number_has_saved(name: str, tmp_path: Path) -> None:
    savers, loaders = (ALL, ALL) if ranks.WHOLE_MATRIX else SOME[name]
    for size in savers:
        ranks.run(_saves, size, str(tmp_path), name)
    for size in loaders:
        ranks.run(_loads, size, str(tmp_path), name, savers)
