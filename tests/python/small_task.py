# SPDX-License-Identifier: Apache-2.0
"""A task that trains in a moment: rows of a matrix, and what another network makes of them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn, optim

ROWS, INPUTS, HIDDEN, OUTPUTS = 48, 12, 24, 4


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))


@lru_cache
def task() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, INPUTS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return x, network(2)(x) * 2


def share_of(rank: int, world_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, y = task()
    return x[rank::world_size].to(dtype), y[rank::world_size].to(dtype)


@torch.no_grad()
def final_loss(model: nn.Module) -> float:
    """Of the parameters as they are, computed in float32."""
    x, y = task()
    alike = network(0)
    alike.load_state_dict({name: p.float() for name, p in model.state_dict().items()})
    return float((alike(x) - y).square().mean())


@lru_cache
def float32_loss(
    optimizer_class: type[optim.Optimizer], steps: int, clip: float, lr: float
) -> float:
    """Of the same training in float32, in one process."""
    model = network(0)
    optimizer = optimizer_class(model.parameters(), lr=lr)  # type: ignore[call-arg]
    x, y = task()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return final_loss(model)
