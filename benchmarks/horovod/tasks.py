# SPDX-License-Identifier: Apache-2.0
"""What is trained; all classify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from farandole.bench.models.mlp import Perceptron
from farandole.bench.models.resnet import Basic, resnet
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.ddp.models import Batch, Transformer


@dataclass(frozen=True)
class Task:
    """A model with batches that fit it. `size` is "full" or "quick"."""

    steps: int  # of one lane in a round
    new_model: Callable[[str], nn.Module]
    new_batch: Callable[[str], Batch]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the scores of classes, or of next tokens."""
    inputs, classes = batch
    return functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())


def new_mlp(size: str) -> nn.Module:
    """Many tensors, each of which is handled for itself."""
    return Perceptron(64, 10 if size == "quick" else 100)


def numbers(size: str) -> Batch:  # noqa: ARG001
    """Vectors."""
    return torch.randn(32, 64), torch.randint(64, (32,))


def new_resnet(size: str) -> nn.Module:
    """11.7 million parameters."""
    return resnet(8, [1, 1, 1, 1], Basic) if size == "quick" else resnet(64, [2, 2, 2, 2], Basic)


def images(size: str) -> Batch:
    """Small ones."""
    samples = 2 if size == "quick" else 16
    return torch.randn(samples, 3, 64, 64), torch.randint(1000, (samples,))


def new_transformer(size: str) -> nn.Module:
    """4.2 million parameters."""
    if size == "quick":
        return Transformer(width=32, layers=2, heads=2, vocabulary=64, tokens=16)
    return Transformer(width=256, layers=4, heads=4, vocabulary=2048, tokens=128)


def text(size: str) -> Batch:
    """Sequences and each one's next tokens."""
    vocabulary, tokens = (64, 16) if size == "quick" else (2048, 128)
    words = torch.randint(vocabulary, (4, tokens + 1))
    return words[:, :-1], words[:, 1:]


TASKS = {
    "mlp": Task(5, new_mlp, numbers),
    "resnet18": Task(1, new_resnet, images),
    "transformer": Task(2, new_transformer, text),
}
