# SPDX-License-Identifier: Apache-2.0
"""Steps of sharded optimizers on the device have the bits of those on the CPU."""

from __future__ import annotations

from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole.optim import LAMB, LARS
from torch import Tensor, nn, optim

from rank_set import RankSet, World

STEPS = 3
# More than one launch has room for; some are longer than a block of threads.
SHAPES = [(1,), (4097,), (33, 5), (2, 3, 4, 5), (90, 101), *[(each,) for each in range(1, 48)]]
RULES: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "AdamW": (optim.AdamW, {"lr": 0.01}),
    "Adam": (optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "SGD": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "LAMB": (LAMB, {"lr": 0.01}),
    "LARS": (LARS, {"lr": 0.1, "momentum": 0.9}),
}
LAYER_WISE = ("LAMB", "LARS")  # sums of a device have another order
STORAGES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float64": (torch.float64, {}),
    "float32": (torch.float32, {}),
    "bfloat16 with masters": (torch.bfloat16, {}),
    "float16 with masters": (torch.float16, {}),
    "bfloat16": (torch.bfloat16, {"master_weights": False, "stochastic_rounding": False}),
    "bfloat16, stochastic": (
        torch.bfloat16,
        {"master_weights": False, "stochastic_rounding": True, "rounding_seed": 5},
    ),
}


def trained(device: str, group: Any, rule: str, storage: str, clips: bool) -> list[Tensor]:
    """Parameters after some steps, with gradients that are the same everywhere."""
    kind, options = RULES[rule]
    dtype, more = STORAGES[storage]
    generator = torch.Generator().manual_seed(1)

    def numbers() -> list[Tensor]:
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
        return [each.to(dtype).to(device) for each in drawn]

    parameters = [nn.Parameter(each) for each in numbers()]
    optimizer = farandole.ZeroRedundancyOptimizer(
        parameters, kind, process_group=group, gradients="full", **more, **options
    )
    for step in range(STEPS):
        for parameter, gradient in zip(parameters, numbers(), strict=True):
            parameter.grad = gradient
        if clips:
            optimizer.clip_grad_value_(0.8)
        if step == 1:
            with torch.no_grad():
                parameters[1].fill_(0.375)  # as a program does that loads parameters
        optimizer.step()
    return [each.detach().cpu() for each in parameters]


def _bits(rank: int, world: World, rule: str) -> None:
    alone = [farandole.new_group([each]) for each in range(world.size)][rank]
    for storage in STORAGES:
        for clips in (False, True):
            got = trained(world.type, None, rule, storage, clips)
            wanted = trained("cpu", alone, rule, storage, clips)
            if rule in LAYER_WISE:
                torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3)
                continue
            for shape, own, expected in zip(SHAPES, got, wanted, strict=True):
                assert torch.equal(own, expected), f"{storage}, {shape}, clipped: {clips}"
    dist.barrier()


@pytest.mark.parametrize("rule", RULES)
def test_steps_have_the_bits_of_the_cpu(group: RankSet, rule: str) -> None:
    group.run(_bits, rule)
