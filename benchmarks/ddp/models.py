# SPDX-License-Identifier: Apache-2.0
"""What is trained: a transformer, ResNet-50 and a great many tiny layers; all classify."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from farandole.bench.models.resnet import resnet
from farandole.bench.models.transformer import TransformerBlock
from torch import Tensor, nn


class Transformer(nn.Module):
    """A language model."""

    def __init__(self, width: int, layers: int, heads: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(tokens, width) / 50)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        """(sequences, tokens) to the scores of each next token, a tensor."""
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.position)))


class Tiny(nn.Module):
    """Many layers of 8 x 8 beside each other: each has two parameters and next to no work."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """The mean of all layers' outputs."""
        return torch.stack([layer(x) for layer in self.layers]).mean(dim=0)


Batch = tuple[Tensor, Tensor]  # inputs and the right classes


@dataclass(frozen=True)
class Task:
    """A model with batches that fit it. `size` is "full" or "quick"."""

    name: str
    title: str
    ranks: int
    steps: int  # of one lane in a round
    new_model: Callable[[str], nn.Module]
    new_batch: Callable[[str, torch.Generator], Batch]


def new_transformer(size: str) -> nn.Module:
    """33.6 million parameters."""
    if size == "quick":
        return Transformer(width=32, layers=2, heads=2, vocabulary=64, tokens=16)
    return Transformer(width=512, layers=8, heads=8, vocabulary=8192, tokens=64)


def token_batch(size: str, generator: torch.Generator) -> Batch:
    """Two sequences and each one's next tokens."""
    vocabulary, tokens = (64, 16) if size == "quick" else (8192, 64)
    text = torch.randint(vocabulary, (2, tokens + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def new_resnet(size: str) -> nn.Module:
    """25.6 million parameters."""
    return resnet(8, [1, 1, 1, 1]) if size == "quick" else resnet(64, [3, 4, 6, 3])


def image_batch(size: str, generator: torch.Generator) -> Batch:
    """Four images."""
    pixels = 32 if size == "quick" else 64
    images = torch.randn(4, 3, pixels, pixels, generator=generator)
    return images, torch.randint(1000, (4,), generator=generator)


def new_tiny(size: str) -> nn.Module:
    """2,000 parameters of 8 or 64 elements."""
    return Tiny(20 if size == "quick" else 1000)


def tiny_batch(size: str, generator: torch.Generator) -> Batch:  # noqa: ARG001
    """One example."""
    return torch.randn(1, 8, generator=generator), torch.randint(8, (1,), generator=generator)


TASKS = {
    each.name: each
    for each in (
        Task("transformer", "transformer", 2, 1, new_transformer, token_batch),
        Task("resnet50", "ResNet-50", 2, 1, new_resnet, image_batch),
        Task("tiny", "2,000 tiny parameters", 1, 5, new_tiny, tiny_batch),
    )
}
