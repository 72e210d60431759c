# SPDX-License-Identifier: Apache-2.0
"""farandole.ZeroRedundancyOptimizer trains as the unsharded optimizer does in one process."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim import LAMB, LARS
from torch import Tensor, nn, optim

import ranks
import sim
from ddp_models import Convolutional, Transformer
from ddp_oracle import assert_alike, batch, seeded
from zero_oracle import (
    DEVICES,
    PAIRS,
    Bowl,
    Trial,
    assert_same_everywhere,
    needs_devices,
)

STEPS = 5 if ranks.THIN_MATRIX else 50


@dataclass(frozen=True)
class Case:
    optimizer: type[optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)
    exact: bool = False


CASES = {
    "sgd": Case(optim.SGD, {"lr": 0.1}, True),
    "sgd_momentum": Case(
        optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}, True
    ),
    "sgd_nesterov": Case(
        optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, True
    ),
    "sgd_maximize": Case(
        optim.SGD, {"lr": 1e-3, "momentum": 0.5, "maximize": True, "weight_decay": 0.1}, True
    ),
    "adam": Case(optim.Adam, {"lr": 0.1}),
    "adam_l2": Case(optim.Adam, {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True, "eps": 1e-3}),
    "adam_decoupled": Case(
        optim.Adam, {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}
    ),
    "adam_foreach": Case(optim.Adam, {"lr": 0.1, "foreach": True}),
    "adamw": Case(optim.AdamW, {"lr": 0.1, "betas": (0.8, 0.9)}),
    "adamw_fused": Case(optim.AdamW, {"lr": torch.tensor(0.1), "fused": True}),
    "adamw_maximize": Case(
        optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True, "weight_decay": 0.1}
    ),
    "lamb": Case(LAMB, {"lr": 0.01}),
    "lamb_plain": Case(LAMB, {"lr": 0.01, "weight_decay": 0, "bias_correction": False}),
    "lars": Case(LARS, {"lr": 1.0, "weight_decay": 0.01, "trust_coefficient": 0.01}),
    "lars_nesterov": Case(LARS, {"lr": 1.0, "nesterov": True, "trust_coefficient": 0.01}),
    "adadelta": Case(optim.Adadelta, {"lr": 1.0, "weight_decay": 0.01}),
    "adagrad": Case(optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    "adagrad_fused": Case(optim.Adagrad, {"lr": 0.1, "fused": True}),
    "adamax": Case(optim.Adamax, {"lr": 0.05, "weight_decay": 0.01}),
    "asgd": Case(optim.ASGD, {"lr": 0.1, "t0": 10, "lambd": 0.01}),
    "nadam": Case(optim.NAdam, {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": Case(optim.RAdam, {"lr": 0.1, "weight_decay": 0.01}),
    "rmsprop": Case(optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "rmsprop_foreach": Case(optim.RMSprop, {"lr": 0.01, "foreach": True, "maximize": True}),
    "rprop": Case(optim.Rprop, {"lr": 0.05}),
}


CORE = ["sgd_nesterov", "adamw", "lamb"]


def chosen(world_size: int, gradients: str) -> list[str]:
    """Each case at one world size in each mode; some, or with FARANDOLE_TEST_ALL all, at each."""
    turn = world_size + 2 * (gradients == "shard")
    names = list(CASES)
    return [
        name
        for number, name in enumerate(names)
        if ranks.WHOLE_MATRIX or name in CORE or (number + turn) % 4 == 0
    ]


def train(
    rank: int, world_size: int, gradients: str, exact: bool, names: list[str], steps: int = STEPS
) -> None:
    for name in names:
        case = CASES[name]
        trial = Trial(Bowl(), case.optimizer, gradients=gradients, **case.options)
        begin = 0
        for end in (1, 2, steps):  # right from step 1
            trial.train(range(begin, end))
            text = f"{name} after step {end}"
            trial.check(text, exact=exact and case.exact)
            begin = end


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_optimizer_trains_as_unsharded(world_size: int, gradients: str) -> None:
    ranks.run(train, world_size, gradients, True, chosen(world_size, gradients))


@needs_devices
@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_on_devices(backend: str, gradients: str) -> None:
    world_size = sim.ALL_SCHEDULES.index(backend.removeprefix("sim-")) + 1
    names = chosen(world_size, gradients)
    ranks.run(train, world_size, gradients, False, names, 6, setup=ranks.Setup(backend=backend))


@pytest.mark.parametrize(("world_size", "gradients"), [(2, "full"), (3, "shard")])
def test_over_gloo(world_size: int, gradients: str) -> None:
    names = ["sgd_momentum", "adamw", "adam_l2", "lamb", "lars", "rmsprop", "asgd"]
    exact = world_size == 2  # gloo adds in another order
    ranks.run(train, world_size, gradients, exact, names, 20, setup=ranks.Setup(backend="gloo"))


def plain_lists(rank: int, world_size: int) -> None:
    """Without DistributedDataParallel, but with averages in p.grad."""
    for optimizer, options in ((optim.SGD, {"momentum": 0.9}), (LAMB, {}), (optim.Rprop, {})):
        trial = Trial(Bowl(), optimizer, ddp=False, lr=0.01, **options)
        trial.train(range(10))
        trial.check(optimizer.__name__, exact=optimizer is optim.SGD)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_plain_parameter_lists(backend: str) -> None:
    ranks.run(plain_lists, 2, setup=ranks.Setup(backend=backend))


def layers(rank: int, world_size: int, gradients: Any) -> None:
    """A model whose forward and backward multiply matrices."""
    for make, shape in ((Transformer, (2, 5, 8)), (Convolutional, (4, 192))):
        model = seeded(make)
        alone = copy.deepcopy(model)
        ddp = DistributedDataParallel(model, broadcast_buffers=False)
        sharded = ZeroRedundancyOptimizer(
            ddp.named_parameters(), optim.AdamW, gradients=gradients, lr=0.01
        )
        unsharded = optim.AdamW(alone.parameters(), lr=0.01)
        for step in range(10):
            unsharded.zero_grad()
            sharded.zero_grad()
            for other in range(world_size):
                output = alone(batch(other, step, *shape))
                (output.sub(1).square().mean() / world_size).backward()
            ddp(batch(rank, step, *shape)).sub(1).square().mean().backward()
            unsharded.step()
            sharded.step()
        sharded.wait()
        for (name, own), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own, wanted, rtol=1e-7, atol=1e-9, msg=name)
            assert_alike(own.detach(), name)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_models_with_layers(backend: str, gradients: str) -> None:
    ranks.run(layers, 3, gradients, setup=ranks.Setup(backend=backend))


class Slopes(nn.Module):
    """The loss is linear: gradients are what forward() is given."""

    def __init__(self, dtypes: list[torch.dtype], shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weights = nn.ParameterList(
            torch.randn(shape, generator=generator).to(dtype)
            for dtype in dtypes
            for shape in shapes
        )

    def forward(self, slopes: list[Tensor]) -> Tensor:
        losses = [(w * slope).real.sum() for w, slope in zip(self.weights, slopes, strict=True)]
        return torch.stack([each.double() for each in losses]).sum()


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def halves(rank: int, world_size: int, gradients: Any) -> None:
    """Half parameters have float32 values that are updated; gradients are exact in bfloat16."""
    cases: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
        (optim.SGD, {"lr": 0.1, "momentum": 0.5}),
        (optim.AdamW, {"lr": 1e-3}),
        (LAMB, {"lr": 1e-3}),
        (optim.RMSprop, {"lr": 1e-3}),
    ]
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
    for optimizer, options in cases:
        model = Slopes(dtypes, [(37, 5), (3,), (), (513,)])
        masters = [
            nn.Parameter(p.detach().to("cpu", wide(p.dtype), copy=True)) for p in model.parameters()
        ]
        ddp = DistributedDataParallel(model)
        sharded = ZeroRedundancyOptimizer(
            model.parameters(), optimizer, gradients=gradients, **options
        )
        unsharded = optimizer(masters, **options)
        generator = torch.Generator().manual_seed(4)
        for _ in range(20):
            slopes = []
            for p, master in zip(model.parameters(), masters, strict=True):
                shape = (world_size, *p.shape)
                every = torch.randint(-8, 9, shape, generator=generator, device="cpu")
                master.grad = every.double().mean(0).to(master.dtype)
                slopes.append(every[rank].to(p.device, p.dtype))
            sharded.zero_grad()
            ddp(slopes).backward()
            sharded.step()
            with torch.device("cpu"):
                unsharded.step()
        sharded.wait()
        for p, master in zip(model.parameters(), masters, strict=True):
            own, wanted = p.detach().cpu(), master.detach().to(p.dtype)
            if optimizer is optim.SGD:
                assert torch.equal(own, wanted), (p.dtype, p.shape)
            else:
                torch.testing.assert_close(own, wanted, msg=f"{optimizer} {p.dtype} {p.shape}")
        assert_same_everywhere(model)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_half_parameters_are_updated_in_float32(backend: str, gradients: str) -> None:
    world_size = 4 if (backend, gradients) == ("farandole", "full") else 2  # whose means are exact
    ranks.run(halves, world_size, gradients, setup=ranks.Setup(backend=backend))


def complex_parameters(rank: int, world_size: int) -> None:
    for optimizer in (optim.SGD, optim.AdamW, optim.RMSprop):
        generator = torch.Generator().manual_seed(3)
        value = torch.randn(17, generator=generator, dtype=torch.complex64)
        own, alone = nn.Parameter(value.clone()), nn.Parameter(value.clone())
        sharded = ZeroRedundancyOptimizer([own], optimizer, lr=0.01)
        unsharded = optimizer([alone], lr=0.01)
        for _ in range(10):
            own.grad = torch.randn(17, generator=generator, dtype=torch.complex64)
            alone.grad = own.grad.clone()
            sharded.step()
            unsharded.step()
        torch.testing.assert_close(own, alone)
        sharded.consolidate_state_dict()
        if rank == 0:
            unsharded.load_state_dict(sharded.state_dict())


@pytest.mark.parametrize("backend", ["farandole", pytest.param("sim-lazy", marks=needs_devices)])
def test_complex_parameters(backend: str) -> None:
    ranks.run(complex_parameters, 2, setup=ranks.Setup(backend=backend))
