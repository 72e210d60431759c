# SPDX-License-Identifier: Apache-2.0
"""Small models of the kinds that people train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Convolutional(nn.Module):
    """Images [N, 3, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.view(-1, 3, 8, 8)).flatten(1))


class Transformer(nn.Module):
    """Sequences [N, 5, 8]; the weight of the first layer is the last one's too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


class Recurrent(nn.Module):
    """Sequences [N, 5, 8]; returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor | tuple[Tensor, ...]]:
        hidden, state = self.lstm(x)
        return {"logits": self.head(hidden), "state": state}


@dataclass
class Routed:
    """What Experts returns."""

    mixed: Tensor
    balance: Tensor


class Experts(nn.Module):
    """Features [N, 8]; some experts are used by no rank, some by one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, chosen: int) -> Routed:
        shares = self.router(x).softmax(-1)
        mixed = self.experts[chosen](x) * shares[:, chosen : chosen + 1]
        return Routed(mixed, shares.square().mean())


class Frozen(nn.Module):
    """Features [N, 8]; one layer is frozen, one branch has no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.teacher = nn.Linear(8, 8)
        self.student = nn.Linear(8, 8)
        self.teacher.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        self.calls = self.calls + 1  # another tensor in each forward
        hidden = self.frozen(x)
        with torch.no_grad():
            target = self.teacher(hidden)
        return self.student(hidden), [target]


class Words(nn.Module):
    """Features [N, 8], whose signs pick words; the gradients of the table are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6, sparse=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table((x.abs() * 3).long().clamp_max(9)))


class Layers(nn.Sequential):
    """Features [N, 8]: three layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
