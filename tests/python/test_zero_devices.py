# SPDX-License-Identifier: Apache-2.0
"""farandole.ZeroRedundancyOptimizer and GradScaler with parameters on accelerators.

What they have in common with the CPU is in the other files, with ``zero_oracle.PAIRS``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim import LAMB, LARS
from torch import nn, optim

import ranks
import sim
from zero_oracle import DEVICES, needs_devices

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
                sharded.step()
                if step >= 2:
                    waits = sim.host_waits() - before
                    operators = sim.take_waiting_operators()
                    assert waits == 0, f"{optimizer.__name__} {dtype}: {waits}: {operators}"


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_a_steady_step_waits_for_nothing(backend: str, gradients: str) -> None:
    ranks.run(_waits, 2, gradients, setup=ranks.Setup(backend=backend))
