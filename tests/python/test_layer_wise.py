# SPDX-License-Identifier: Apache-2.0
"""farandole.optim.LAMB and LARS do what their papers say."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from farandole import InvalidArgument, NotSupported
from farandole.optim import LAMB, LARS
from torch import Tensor, nn, optim

from zero_oracle import Bowl, loss


def train(optimizer: optim.Optimizer, model: nn.Module, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss(model, 0, step).backward()
        optimizer.step()


def trust(numerator: Tensor, denominator: Tensor) -> Tensor:
    both = (numerator > 0) & (denominator > 0)
    return torch.where(both, numerator / denominator, torch.ones_like(numerator))


class PlainLamb:
    """arXiv:1904.00962, algorithm 2, with phi(z) = z."""

    def __init__(self, model: nn.Module, **by: Any) -> None:
        self.by = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, "sign": 1, **by}
        self.states = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        beta1, beta2 = self.by["betas"]
        corrects = self.by.get("bias_correction", True)
        for p, m, v in self.states:
            g = self.by["sign"] * p.grad
            m.mul_(beta1).add_((1 - beta1) * g)
            v.mul_(beta2).add_((1 - beta2) * g * g)
            c1 = 1 - beta1**self.count if corrects else 1.0
            c2 = 1 - beta2**self.count if corrects else 1.0
            r = (m / c1) / ((v / c2).sqrt() + self.by["eps"]) + self.by["weight_decay"] * p
            p -= self.by["lr"] * trust(p.norm(), r.norm()) * r


class PlainLars:
    """arXiv:1708.03888, algorithm 1."""

    def __init__(self, model: nn.Module, **by: Any) -> None:
        self.by = {"momentum": 0.9, "weight_decay": 0.0, "trust_coefficient": 0.001, **by}
        self.states = [(p, torch.zeros_like(p)) for p in model.parameters()]

    @torch.no_grad()
    def step(self) -> None:
        decay, momentum = self.by["weight_decay"], self.by["momentum"]
        for p, b in self.states:
            weight, gradient = p.norm(), p.grad.norm()
            rate = self.by["trust_coefficient"] * trust(
                weight, gradient + decay * weight + self.by.get("eps", 1e-8)
            )
            if weight == 0 or gradient == 0:
                rate = torch.ones_like(rate)
            d = rate * (p.grad + decay * p)
            b.mul_(momentum).add_(d)
            p -= self.by["lr"] * (d + momentum * b if self.by.get("nesterov") else b)


CASES: list[tuple[type[optim.Optimizer], Any, dict[str, Any]]] = [
    (LAMB, PlainLamb, {"lr": 0.01}),
    (LAMB, PlainLamb, {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    (LAMB, PlainLamb, {"lr": 0.01, "bias_correction": False, "weight_decay": 0.0}),
    (LARS, PlainLars, {"lr": 1.0}),
    (LARS, PlainLars, {"lr": 1.0, "weight_decay": 0.1, "momentum": 0.5, "nesterov": True}),
    (LARS, PlainLars, {"lr": 1.0, "momentum": 0.0, "trust_coefficient": 0.1, "eps": 0.1}),
]


@pytest.mark.parametrize(("optimizer", "plain", "options"), CASES)
def test_steps_are_as_in_the_paper(
    optimizer: type[optim.Optimizer], plain: Any, options: dict[str, Any]
) -> None:
    model = Bowl().double()
    with torch.no_grad():
        model.weights[1].zero_()  # a norm of 0
    wanted = copy.deepcopy(model)
    own, other = optimizer(model.parameters(), **options), plain(wanted, **options)
    for step in range(20):
        for each, trained in ((own, model), (other, wanted)):
            trained.zero_grad()
            loss(trained, 0, step).backward()
            each.step()
    for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", [LAMB, LARS])
def test_they_are_optimizers_of_torch(optimizer: type[optim.Optimizer]) -> None:
    model = Bowl()
    groups = [{"params": list(model.parameters())[:2]}, {"params": list(model.parameters())[2:]}]
    own = optimizer(groups, lr=torch.tensor(0.1))
    scheduler = optim.lr_scheduler.StepLR(own, 1)
    model.weights[0].requires_grad_(False)
    assert own.step(lambda: 3.0) == 3.0
    train(own, model, range(2))
    scheduler.step()
    state = own.state_dict()
    names = ["step", "exp_avg", "exp_avg_sq"] if optimizer is LAMB else ["momentum_buffer"]
    assert list(state["state"][1]) == names
    assert 0 not in state["state"]
    again = copy.deepcopy(model)
    loaded = optimizer(
        [{"params": list(again.parameters())[:2]}, {"params": list(again.parameters())[2:]}],
        lr=1.0,
    )
    loaded.load_state_dict(copy.deepcopy(state))
    assert float(loaded.param_groups[0]["lr"]) == pytest.approx(0.01)
    train(own, model, range(2, 4))
    train(loaded, again, range(2, 4))
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("optimizer", [LAMB, LARS])
def test_the_state_of_half_parameters_is_loaded_unrounded(
    optimizer: type[optim.Optimizer], dtype: torch.dtype
) -> None:
    model = Bowl().to(dtype)
    own = optimizer(model.parameters(), lr=0.1)
    train(own, model, range(3))
    again = copy.deepcopy(model)
    loaded = optimizer(again.parameters(), lr=1.0)
    seen: list[torch.dtype] = []

    def see(each: optim.Optimizer) -> None:
        seen.extend(v.dtype for state in each.state.values() for v in state.values())

    loaded.register_load_state_dict_pre_hook(lambda _, state: copy.deepcopy(state))
    loaded.register_load_state_dict_post_hook(see)
    loaded.load_state_dict(own.state_dict())
    assert set(seen) == {torch.float32}
    for mine, theirs in zip(own.state.values(), loaded.state.values(), strict=True):
        for name, value in mine.items():
            assert torch.equal(value, theirs[name])
            is_apart = value.data_ptr() != theirs[name].data_ptr()
            assert is_apart or name == "step" or value.numel() == 0
    train(own, model, range(3, 5))
    train(loaded, again, range(3, 5))
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    loaded.load_state_dict({"state": {}, "param_groups": own.state_dict()["param_groups"]})
    assert not loaded.state
    with pytest.raises(ValueError, match="different number of parameter groups"):
        loaded.load_state_dict({"state": {}, "param_groups": []})
    assert len(loaded._optimizer_load_state_dict_pre_hooks) == 1


@pytest.mark.parametrize("optimizer", [LAMB, LARS])
def test_maximize_goes_the_other_way(optimizer: type[optim.Optimizer]) -> None:
    up, down = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    climber = optimizer([up], lr=0.1, weight_decay=0.0, maximize=True)
    faller = optimizer([down], lr=0.1, weight_decay=0.0)
    up.grad, down.grad = -torch.ones(5), torch.ones(5)
    climber.step()
    faller.step()
    assert torch.equal(up, down)
    assert (up < 1).all()


def test_hyperparameters_are_checked() -> None:
    parameters = [nn.Parameter(torch.ones(1))]
    for options in ({"lr": -1.0}, {"eps": -1.0}, {"weight_decay": math.nan}, {"betas": (1.0, 0.5)}):
        with pytest.raises(InvalidArgument, match="LAMB got"):
            LAMB(parameters, **options)
    for options in (
        {"lr": -1.0},
        {"lr": 1.0, "momentum": -1.0},
        {"lr": 1.0, "nesterov": True, "momentum": 0.0},
        {"lr": 1.0, "nesterov": True, "dampening": 0.5},
    ):
        with pytest.raises(ValueError, match="LARS got"):
            LARS(parameters, **options)
    optimizer = LAMB(parameters)
    parameters[0].grad = torch.ones(1).to_sparse()
    with pytest.raises(NotSupported, match="gradient of layout Sparse"):
        optimizer.step()
