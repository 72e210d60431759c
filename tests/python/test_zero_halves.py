# SPDX-License-Identifier: Apache-2.0
"""Models of half types: with float32 master weights, without them, and rounded stochastically."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, GradScaler, InvalidArgument, ZeroRedundancyOptimizer
from torch import Tensor, nn, optim

import ranks
from small_task import final_loss, float32_loss, network, share_of
from zero_oracle import SHAPES, Bowl, assert_same_everywhere, loss

BFLOAT16 = [(shape, torch.bfloat16) for shape, _ in SHAPES]
MODES = ["full", "shard"]
WITHOUT_MASTERS: dict[str, Any] = {"master_weights": False}
STOCHASTIC: dict[str, Any] = {**WITHOUT_MASTERS, "stochastic_rounding": True, "rounding_seed": 5}
OPTIMIZERS: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.01}),
    (optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    (optim.AdamW, {"lr": 1e-3}),
]

# Pure half models with master weights.

STEPS, CLIP, LR = 80, 0.5, 0.01


def train_halves(dtype: torch.dtype, gradients: Any) -> float:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = network(0).to(dtype)
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, gradients=gradients, lr=LR)
    scaler = GradScaler(enabled=dtype == torch.float16, init_scale=2.0**12)
    x, y = share_of(rank, world_size, dtype)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale((ddp(x) - y).float().square().mean()).backward()
        if gradients == "shard":
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(CLIP)
        else:  # float16 gradients stay scaled until step() reads them
            optimizer.clip_grad_norm_(CLIP * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    optimizer.wait()
    assert_same_everywhere(model, f"{dtype} {gradients}")
    assert all(p.dtype == dtype and p.grad is not None for p in model.parameters())
    return final_loss(model)


def reach_the_loss_of_float32(rank: int, world_size: int) -> None:
    wanted = float32_loss(optim.AdamW, STEPS, CLIP, LR)
    for dtype in (torch.bfloat16, torch.float16):
        for gradients in MODES:
            reached = train_halves(dtype, gradients)
            assert abs(reached - wanted) <= 0.05 * wanted, (dtype, gradients, reached, wanted)


@pytest.mark.parametrize(
    ("backend", "world_size"),
    [("farandole", 1), ("farandole", 2), ("farandole", 3), ("hosts", 2), ("gloo", 2)],
)
def test_half_models_reach_the_loss_of_float32(backend: str, world_size: int) -> None:
    ranks.run(reach_the_loss_of_float32, world_size, setup=ranks.Setup(backend=backend))


TINY = 2.0**-27  # zero in float16


def tiny_gradients(rank: int, world_size: int) -> None:
    """step() divides by the scale in float32, where float16 would have no such numbers."""
    for gradients in MODES:
        model = nn.ParameterList([torch.zeros(70, dtype=torch.float16)])
        scaler = GradScaler(init_scale=2.0**16)
        ddp = DistributedDataParallel(Sum(model))
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optim.SGD, gradients=gradients, lr=1.0
        )
        optimizer.zero_grad()
        scaler.scale(ddp().float() * TINY).backward()
        assert model[0].grad is not None
        scaled = model[0].grad.clone()
        assert bool((scaled == TINY * 2.0**16).all())
        assert bool((scaled / 2.0**16 == 0).all())  # what unscaling in float16 leaves
        scaler.step(optimizer)
        for master in optimizer._engine.state(0, "master_parameter"):
            assert bool((master == -TINY).all())
        scaler.update()


class Sum(nn.Module):
    def __init__(self, weights: nn.ParameterList) -> None:
        super().__init__()
        self.weights = weights

    def forward(self) -> Tensor:
        return torch.stack([weight.sum() for weight in self.weights]).sum()


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_tiny_float16_gradients_do_not_vanish(backend: str) -> None:
    ranks.run(tiny_gradients, 2, setup=ranks.Setup(backend=backend))


# Without master weights.


def train(model: Bowl, gradients: Any, steps: range, saved: Any = None, **options: Any) -> Any:
    """The same gradients on every rank, so that averages are the same for any number of them."""
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), gradients=gradients, **options)
    if saved is not None:
        optimizer.load_state_dict(saved)
    for step in steps:
        optimizer.zero_grad()
        loss(ddp, 0, step).backward()
        optimizer.step()
    optimizer.wait()
    assert_same_everywhere(model)
    return optimizer


def weights_of(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def halfway(rank: int, world_size: int) -> bytes:
    """By optimizer: weights after 3 steps, the state then, and the weights after 6; saved."""
    results = []
    for optimizer_class, options in OPTIMIZERS:
        model = Bowl(BFLOAT16)
        optimizer = train(
            model, "full", range(3), optimizer_class=optimizer_class, **STOCHASTIC, **options
        )
        optimizer.consolidate_state_dict()
        middle = weights_of(model)
        state = optimizer.state_dict() if rank == 0 else None
        model = Bowl(BFLOAT16)
        train(model, "full", range(6), optimizer_class=optimizer_class, **STOCHASTIC, **options)
        results.append((middle, state, weights_of(model)))
    buffer = io.BytesIO()
    torch.save(results, buffer)
    return buffer.getvalue()


def same_bits(rank: int, world_size: int, saved: bytes) -> None:
    """As on another number of ranks, in both modes, from the start and from the middle."""
    results = torch.load(io.BytesIO(saved))
    for (optimizer_class, options), (middle, state, end) in zip(OPTIMIZERS, results, strict=True):
        for gradients in MODES:
            for begin in (0, 3):
                model = Bowl(BFLOAT16)
                if begin == 3:
                    with torch.no_grad():
                        for p, value in zip(model.parameters(), middle, strict=True):
                            p.copy_(value)
                train(
                    model,
                    gradients,
                    range(begin, 6),
                    state if begin == 3 else None,
                    optimizer_class=optimizer_class,
                    **STOCHASTIC,
                    **options,
                )
                text = (optimizer_class, options, gradients, begin)
                assert all(map(torch.equal, weights_of(model), end)), text
        plain = optimizer_class(Bowl(BFLOAT16).parameters(), **options)
        plain.load_state_dict(state)  # which takes no notice of what it does not know


def test_stochastic_rounding_gives_the_same_bits_everywhere() -> None:
    saved = ranks.run(halfway, 1)[0]
    ranks.run(same_bits, 2, saved)
    ranks.run(same_bits, 3, saved)
    ranks.run(same_bits, 2, saved, setup=ranks.Setup(backend="gloo"))


def small_steps(rank: int, world_size: int) -> None:
    """A sixteenth of the distance to the next bfloat16, 64 times."""
    elements, lr, steps = 1 << 14, 2.0**-12, 64
    for options in (WITHOUT_MASTERS, STOCHASTIC):
        weight = nn.Parameter(torch.ones(elements, dtype=torch.bfloat16))
        weight.grad = torch.ones_like(weight)
        optimizer = ZeroRedundancyOptimizer([weight], optim.SGD, lr=lr, **options)
        for _ in range(steps):
            optimizer.step()
        optimizer.wait()
        if options is WITHOUT_MASTERS:
            assert bool((weight == 1).all())
            assert optimizer.state_bytes() == 0
            continue
        deviation = 2.0**-8 * (steps * 15 / 256 / elements) ** 0.5
        assert abs(weight.double().mean().item() - (1 - steps * lr)) < 4 * deviation


def stochastic_beside_nearest(rank: int, world_size: int) -> None:
    """Steps are less than half of the distance of bfloat16: nearest rounding stands still."""
    steps, lr = 300, 5e-4
    wanted = float32_loss(optim.AdamW, steps, 1e9, lr)
    reached = {}
    for name, options in (("nearest", WITHOUT_MASTERS), ("stochastic", STOCHASTIC)):
        model = network(0).bfloat16()
        ddp = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=lr, **options)
        x, y = share_of(rank, world_size, torch.bfloat16)
        for _ in range(steps):
            optimizer.zero_grad()
            (ddp(x) - y).float().square().mean().backward()
            optimizer.step()
        optimizer.wait()
        reached[name] = abs(final_loss(model) - wanted)
    assert reached["stochastic"] < 0.3 * reached["nearest"], (reached, wanted)


def test_stochastic_rounding_takes_steps_that_nearest_loses() -> None:
    ranks.run(small_steps, 2)
    ranks.run(stochastic_beside_nearest, 2)


def refusals(rank: int, world_size: int) -> None:
    def refused(dtype: torch.dtype, text: str, **options: Any) -> None:
        options.setdefault("optimizer_class", optim.AdamW)
        with pytest.raises(InvalidArgument, match=text):
            ZeroRedundancyOptimizer([nn.Parameter(torch.ones(9, dtype=dtype))], **options)

    refused(torch.bfloat16, "combined with master weights", stochastic_rounding=True)
    refused(torch.float16, "has dtype float16, and stochastic_rounding is on", **STOCHASTIC)
    refused(
        torch.bfloat16,
        "master_weights=false was passed to an optimizer that is not fused",
        optimizer_class=optim.RMSprop,
        **WITHOUT_MASTERS,
    )
    # Parameters of float32 are not rounded.
    mixed = [nn.Parameter(torch.ones(9)), nn.Parameter(torch.ones(9, dtype=torch.bfloat16))]
    optimizer = ZeroRedundancyOptimizer(mixed, optim.SGD, lr=2.0**-12, **STOCHASTIC)
    for p in mixed:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert bool((mixed[0] == 1 - 2.0**-12).all())
    with pytest.raises(InvalidArgument, match="has dtype float16"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(9, dtype=torch.float16))]})
    optimizer.step()


def test_what_half_options_cannot_be() -> None:
    ranks.run(refusals, 2)
