# SPDX-License-Identifier: Apache-2.0
"""Tiny trainings that a debugger's hook looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from farandole.debugger import (
    Hook,
    ModeKeys,
    NoMoreData,
    ReductionConfig,
    Rule,
    SaveConfig,
    SaveConfigMode,
    Trial,
    create_trial,
    invoke_rule,
)
from torch import Tensor, nn

EVERY_STEP = SaveConfig(save_interval=1)
ELEMENTS = ReductionConfig(save_raw_tensor=True)
Batches = Iterator[tuple[Tensor, Tensor]]


class Net(nn.Module):
    """Two layers, and a function between them whose module has the name ``activation``."""

    def __init__(self, activation: nn.Module | None = None, outputs: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.activation = activation or nn.ReLU()
        self.second = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def batches(steps: int, samples: int = 16) -> Batches:
    """Rows, and which of three columns of each is the largest."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        x = torch.randn(samples, 4, generator=generator)
        yield x, x[:, :3].argmax(1)


def train(
    path: Path,
    model: nn.Module,
    data: Batches,
    *,
    loss: nn.Module | None = None,
    lr: float = 0.1,
    after_step: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Trial:
    """Train by SGD while a hook saves every step into ``path``."""
    hook = Hook(path, **{"save_config": EVERY_STEP, **options})
    loss = loss or nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr) if lr else None
    for step, (inputs, targets) in enumerate(data):
        model.zero_grad()
        loss(model(inputs), targets).backward()
        if optimizer:
            optimizer.step()
        after_step(step)
    hook.close()
    return create_trial(path)


def losses(path: Path, rounds: list[tuple[float, float]]) -> Trial:
    """A trial that has a training step and a validation step with each pair of losses."""
    hook = Hook(path, save_config={mode: SaveConfigMode(1) for mode in ModeKeys})
    model, loss = nn.Identity(), nn.L1Loss()
    hook.register_module(model)
    hook.register_loss(loss)
    for pair in rounds:
        for mode, value in zip((ModeKeys.TRAIN, ModeKeys.EVAL), pair, strict=True):
            hook.set_mode(mode)
            loss(model(torch.tensor([value])), torch.zeros(1))
    hook.close()
    return create_trial(path)


def found_by(rule: Rule) -> list[tuple[int, str | None]]:
    """The steps and tensors that a rule finds fault with in a whole trial."""
    try:
        invoke_rule(rule)
    except NoMoreData:
        return [(finding.step, finding.tensor) for finding in rule.findings]
    raise AssertionError("a rule ended before its trial")
