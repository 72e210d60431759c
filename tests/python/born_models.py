# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are large enough (16 KiB) for gradients to be born in their buckets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class Residuals(nn.Module):
    """Images [N, 3, 12, 12]."""

    def __init__(self, *, channels_last: bool = False) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Residual(32), nn.Conv2d(32, 64, 3, stride=2), Residual(64))
        self.head = nn.Linear(64, 10)
        if channels_last:
            self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        if self.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Separable(nn.Sequential):
    """Images [N, 3, 12, 12], down by depthwise convolutions and up by transposed ones."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.Conv2d(64, 64, 3, padding=1, groups=64),
            nn.Conv2d(64, 128, 1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, stride=2, groups=128),
            nn.Conv2d(128, 64, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 3, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 3),
        )


class Recurrent(nn.Module):
    """Sequences [N, 6, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Vision(nn.Module):
    """Images [N, 3, 16, 16] in patches, with positions that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 2, stride=2)
        self.start = nn.Parameter(torch.randn(1, 1, 64))
        self.positions = nn.Parameter(torch.randn(1, 65, 64))
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 128)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(len(x), -1, -1), patches], 1) + self.positions
        return self.head(self.block(x)[:, 0])


class Words(nn.Module):
    """Features [N, 64], whose signs pick words; the table is the last layer's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(128, 64)
        self.places = nn.Embedding(64, 64)
        self.middle = nn.Linear(64, 64)
        self.last = nn.Linear(64, 128)
        self.last.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        words = self.table((x.abs() * 40).long().clamp_max(127)) * x.unsqueeze(-1)
        return self.last(torch.tanh(self.middle(words + self.places.weight)))


class Sums(nn.Module):
    """Features [N, 64]; parameters are added to tensors of their shape, which share gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.base = nn.Parameter(torch.randn(64, 64))
        self.shifts = nn.ParameterList(nn.Parameter(torch.randn(64, 64)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.inner(self.base)
        for shift in self.shifts:
            weight = weight + shift
        return torch.tanh(x @ weight) @ self.shifts[0]


class Layers(nn.Module):
    """Features [N, 64]; `checkpoints`: None, or use_reentrant of a checkpoint around each layer."""

    def __init__(self, *, checkpoints: bool | None = None) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.checkpoints is None:
                x = x + layer(x)
            else:
                x = x + checkpoint(layer, x, use_reentrant=self.checkpoints)
        return x
