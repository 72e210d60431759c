# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel(wire_dtype=...): what gradients travel as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from farandole import (
    BackwardError,
    DistributedDataParallel,
    GradScaler,
    InvalidArgument,
    ZeroRedundancyOptimizer,
)
from torch import nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel.distributed import _MixedPrecision

import ranks
from small_task import final_loss, network, share_of
from zero_oracle import assert_same_everywhere

GLOO = ranks.Setup(backend="gloo")
STEPS = 50


def train(rank: int, world_size: int, gradients: Any, wire_dtype: Any) -> tuple[float, int]:
    """The loss at the end, and the bytes of a step."""
    model = network(0)
    ddp = DistributedDataParallel(model, wire_dtype=wire_dtype)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optim.AdamW, gradients=gradients, lr=0.01
    )
    x, y = share_of(rank, world_size, torch.float32)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (ddp(x) - y).square().mean().backward()
        optimizer.step()
    optimizer.wait()
    assert_same_everywhere(model, f"{gradients} {wire_dtype}")
    return final_loss(model), optimizer.bytes_moved()


def losses_and_bytes(rank: int, world_size: int, is_shared: bool) -> None:
    for gradients in ("full", "shard"):
        wanted, whole = train(rank, world_size, gradients, None)
        for wire_dtype in (torch.bfloat16, "float16"):
            loss, moved = train(rank, world_size, gradients, wire_dtype)
            assert abs(loss - wanted) <= 0.005 * wanted, (gradients, wire_dtype, loss, wanted)
            assert (loss == wanted) == is_shared  # where nothing travels
            if gradients == "shard" and not is_shared:
                assert moved == 0.75 * whole  # half of the gradients, all of the parameters
            else:
                assert moved == whole


@pytest.mark.parametrize(("backend", "world_size"), [("farandole", 2), ("gloo", 3)])
def test_final_loss_and_bytes(backend: str, world_size: int) -> None:
    ranks.run(
        losses_and_bytes, world_size, backend == "farandole", setup=ranks.Setup(backend=backend)
    )


def rounded_on_the_way(rank: int, world_size: int) -> None:
    """In half types, and added up in float32 where the optimizer averages."""
    for dtype, value, casted in (
        (torch.float32, 1 + 2.0**-12, 1.0),
        (torch.float64, 1 + 2.0**-12, 1.0),
        (torch.float16, 1 + 2.0**-10, 1 + 2.0**-10),  # half types travel as they are
    ):
        model = nn.ParameterList([torch.zeros(5, dtype=dtype)])
        ddp = DistributedDataParallel(Times(model), wire_dtype="bfloat16")
        ddp(value).backward()
        assert model[0].grad is not None
        assert bool((model[0].grad == casted).all()), dtype
    half = nn.ParameterList([torch.zeros(5, dtype=torch.float16)])
    ddp = DistributedDataParallel(Times(half), wire_dtype="float32")
    ddp(65504.0).backward()  # twice that is no float16
    assert half[0].grad is not None
    assert bool((half[0].grad == 65504).all())
    model = nn.ParameterList([torch.zeros(5, dtype=torch.bfloat16)])
    ddp = DistributedDataParallel(Times(model), wire_dtype=torch.bfloat16)
    sharded = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, gradients="shard", lr=1.0)
    ddp(256.0 if rank == 0 else 1.0).backward()
    sharded.step()
    for master in sharded._engine.state(0, "master_parameter"):
        assert bool((master == -128.5).all())  # which no bfloat16 is


class Times(nn.Module):
    def __init__(self, weights: nn.ParameterList) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, slope: float) -> torch.Tensor:
        return torch.stack([(weight * slope).sum() for weight in self.weights]).sum()


def refusals(rank: int, world_size: int) -> None:
    for wrong in (torch.float64, torch.int8, "int32", "half precision"):
        with pytest.raises(InvalidArgument, match="got the wire_dtype"):
            DistributedDataParallel(nn.Linear(2, 2), wire_dtype=wrong)
    ddp = DistributedDataParallel(nn.Linear(2, 2), wire_dtype="bfloat16")
    with pytest.raises(InvalidArgument, match="a communication hook was registered in addition to"):
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    ddp(torch.ones(1, 2)).sum().backward()
    with pytest.raises(InvalidArgument, match="both wire_dtype and a reduce_dtype"):
        DistributedDataParallel(
            nn.Linear(2, 2),
            wire_dtype="bfloat16",
            mixed_precision=_MixedPrecision(reduce_dtype=torch.float16),
        )
    casting = DistributedDataParallel(
        nn.Linear(2, 2),
        wire_dtype="float16",
        mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16),
    )
    casting(torch.ones(1, 2)).sum().backward()
    differs = DistributedDataParallel(
        nn.Linear(2, 2), wire_dtype=torch.bfloat16 if rank == 0 else None
    )
    with pytest.raises(BackwardError, match="different bucket caps or wire dtypes"):
        differs(torch.ones(1, 2)).sum().backward()


def overflows(rank: int, world_size: int) -> None:
    """What is too large for the wire is Inf where it comes out, and a GradScaler sees that."""
    for gradients in ("full", "shard"):
        model = nn.ParameterList([torch.ones(5), torch.ones(7, dtype=torch.bfloat16)])
        ddp = DistributedDataParallel(Times(model), wire_dtype="float16")
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optim.RMSprop, gradients=gradients, lr=0.5
        )
        scaler = GradScaler(init_scale=2.0**16)
        for step in range(2):
            optimizer.zero_grad()
            scaler.scale(ddp(1.0)).backward()  # 2^16 is above 65504; 2^15 is not
            scaler.step(optimizer)
            scaler.update()
            optimizer.wait()
            assert bool((model[0] == 1).all()) == (step == 0), (gradients, step)
            assert scaler.get_scale() == 2.0**15


def check_all(rank: int, world_size: int) -> None:
    rounded_on_the_way(rank, world_size)
    overflows(rank, world_size)
    refusals(rank, world_size)


def test_rounding_and_refusals() -> None:
    ranks.run(check_all, 2, setup=GLOO)
