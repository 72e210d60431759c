# SPDX-License-Identifier: Apache-2.0
"""farandole.DistributedDataParallel trains as one process would that sees all batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel
from torch import Tensor, nn

import ddp_models
import ranks
import sim
from ddp_oracle import assert_alike, batch, seeded

STEPS = 4


def square(output: Tensor) -> Tensor:
    return output.square().mean()


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[Any], Tensor] = square
    options: dict[str, Any] = field(default_factory=dict)
    arguments: Callable[[int, int], tuple[Any, ...]] = lambda rank, step: ()


CASES = {
    "cnn": Case(ddp_models.Convolutional, (4, 3 * 8 * 8)),
    "channels_last": Case(
        lambda: ddp_models.Convolutional().to(memory_format=torch.channels_last), (4, 3 * 8 * 8)
    ),
    "transformer": Case(ddp_models.Transformer, (2, 5, 8)),
    "lstm": Case(ddp_models.Recurrent, (2, 5, 8), lambda out: square(out["logits"])),
    "experts": Case(
        ddp_models.Experts,
        (4, 8),
        lambda out: square(out.mixed) + out.balance,
        {"find_unused_parameters": True},
        lambda rank, step: ((rank + step) % 3,),
    ),
    "frozen": Case(ddp_models.Frozen, (4, 8), lambda out: square(out[0] - out[1][0])),
    "sparse": Case(ddp_models.Words, (4, 8)),
    "static": Case(
        ddp_models.Experts,
        (4, 8),
        lambda out: square(out.mixed),
        {"static_graph": True, "bucket_cap_mb_list": [0.0001, 0.0005]},
        lambda rank, step: (1,),
    ),
    "scalar": Case(lambda: nn.Linear(8, 1, bias=False), (4, 8)),
}


def optimizer_of(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def train_alone(case: Case, model: nn.Module, world_size: int, momentum: float) -> list[dict]:
    """Each rank's buffers at the end. All go on from rank 0's in every step."""
    optimizer = optimizer_of(model, momentum)
    after = [buffers_of(model)] * world_size
    for step in range(STEPS):
        optimizer.zero_grad()
        before = after[0]
        after = []
        for rank in range(world_size):
            model.load_state_dict(before, strict=False)
            output = model(batch(rank, step, *case.shape), *case.arguments(rank, step))
            (case.loss(output) / world_size).backward()
            after.append(buffers_of(model))
        optimizer.step()
    return after


def cases() -> dict[str, Case]:
    """Those that the device of the default group can run."""
    if ranks.on_simulated_device():  # which has no LSTM and no sparse tensors
        return {name: case for name, case in CASES.items() if name not in ("lstm", "sparse")}
    return CASES


def train(rank: int, world_size: int) -> None:
    for name, case in cases().items():
        momentum = 0.0 if name == "sparse" else 0.9
        model = seeded(case.make)
        alone = copy.deepcopy(model)
        buffers = train_alone(case, alone, world_size, momentum)[rank]
        if rank != 0:  # the wrapper must bring rank 0's
            for parameter in model.parameters():
                nn.init.zeros_(parameter)
        ddp = DistributedDataParallel(model, **case.options)
        optimizer = optimizer_of(ddp, momentum)
        for step in range(STEPS):
            optimizer.zero_grad()
            output = ddp(batch(rank, step, *case.shape), *case.arguments(rank, step))
            case.loss(output).backward()
            optimizer.step()
        for (key, own), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
            text = f"{name}: {key}"
            torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12, msg=text)
            assert_alike(own.detach(), text)
        for key, own in model.named_buffers():
            torch.testing.assert_close(own, buffers[key], rtol=1e-9, atol=1e-12, msg=key)
        assert ddp.stats().backward == STEPS


@pytest.mark.parametrize(
    ("backend", "world_size"),
    [
        ("farandole", 1),
        ("farandole", 2),
        ("farandole", 3),
        ("hosts", 2),
        ("gloo", 2),
        ("gloo", 3),
        pytest.param("sim-lazy", 1, marks=sim.NEEDS_NCCL),
        pytest.param("sim-slow_side", 3, marks=sim.NEEDS_NCCL),
    ],
)
def test_every_kind_of_model_trains_as_in_one_process(backend: str, world_size: int) -> None:
    ranks.run(train, world_size, setup=ranks.Setup(backend=backend))


def bits_for_caps(rank: int, world_size: int) -> None:
    results = []
    for cap in (None, 0.0001, 0.0005, 0.002, 25):
        torch.manual_seed(0)
        model = ddp_models.Layers()
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
        optimizer = torch.optim.Adam(ddp.parameters())
        for step in range(4):
            optimizer.zero_grad()
            square(ddp(batch(rank, step, 4, 8).float())).backward()
            optimizer.step()
        results.append((len(ddp.stats().buckets), [p.detach() for p in model.parameters()]))
    assert len({count for count, _ in results}) >= 3
    for _, parameters in results[1:]:
        assert all(map(torch.equal, parameters, results[0][1]))


def test_bits_do_not_depend_on_the_buckets() -> None:
    ranks.run(bits_for_caps, 3)


def weighted(rank: int, world_size: int) -> None:
    """A mean over items: ranks and passes have different numbers of them."""
    model = seeded(ddp_models.Layers)
    alone = copy.deepcopy(model)
    ddp = DistributedDataParallel(model)
    for step in range(3):
        counts = [[1 + (r + step + turn) % 4 for turn in range(2)] for r in range(world_size)]
        everything = torch.cat(
            [
                batch(r, 10 * step + turn, counts[r][turn], 8)
                for r in range(world_size)
                for turn in range(2)
            ]
        )
        alone.zero_grad()
        square(alone(everything)).backward()
        ddp.zero_grad()
        for turn in range(2):
            x = batch(rank, 10 * step + turn, counts[rank][turn], 8)
            ddp.set_loss_weight(len(x))
            if turn == 0:
                with ddp.no_sync():
                    square(ddp(x)).backward()
            else:
                square(ddp(x)).backward()
        for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own.grad, wanted.grad, rtol=1e-9, atol=1e-12)
    ddp.set_loss_weight(None)
    ddp.zero_grad()
    ddp(batch(rank, 0, 2, 8)).sum().backward()
    with pytest.raises(ValueError, match="at least 0"):
        ddp.set_loss_weight(-1)
    dist.barrier()


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("slow_default")])
def test_gradients_are_means_over_items_with_loss_weights(backend: str) -> None:
    ranks.run(weighted, 2, setup=ranks.Setup(backend=backend))
