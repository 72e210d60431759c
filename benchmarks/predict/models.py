# SPDX-License-Identifier: Apache-2.0
"""Three small trainings that differ in computation, gradients and buffers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from farandole.bench.models.resnet import resnet
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.ddp.models import Transformer

Batch = tuple[Tensor, Tensor]  # inputs and the right classes


@dataclass(frozen=True)
class Model:
    """`size` is "full" or "quick"."""

    title: str
    new_model: Callable[[str], nn.Module]
    new_batch: Callable[[str, torch.Generator], Batch]


def new_transformer(size: str) -> nn.Module:
    """3.7 million parameters: gradients of 0.25 to 1 MiB, the embedding's comes last."""
    if size == "quick":
        return Transformer(width=32, layers=2, heads=2, vocabulary=64, tokens=16)
    return Transformer(width=256, layers=4, heads=4, vocabulary=1024, tokens=64)


def token_batch(size: str, generator: torch.Generator) -> Batch:
    """Eight sequences and each one's next tokens."""
    vocabulary, tokens = (64, 16) if size == "quick" else (1024, 64)
    text = torch.randint(vocabulary, (8, tokens + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def new_resnet(size: str) -> nn.Module:
    """2.1 million parameters, most of which are ready early, and buffers that are broadcast."""
    return resnet(8, [1, 1, 1, 1]) if size == "quick" else resnet(24, [1, 2, 2, 1])


def image_batch(size: str, generator: torch.Generator) -> Batch:
    """Eight images."""
    pixels = 32 if size == "quick" else 64
    images = torch.randn(8, 3, pixels, pixels, generator=generator)
    return images, torch.randint(1000, (8,), generator=generator)


def new_perceptron(size: str) -> nn.Module:
    """4.5 million parameters in layers that are all alike."""
    width = 32 if size == "quick" else 768
    layers: list[nn.Module] = []
    for _ in range(7):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 64 if size == "quick" else 512))


def vector_batch(size: str, generator: torch.Generator) -> Batch:
    """256 vectors."""
    width, classes = (32, 64) if size == "quick" else (768, 512)
    inputs = torch.randn(256, width, generator=generator)
    return inputs, torch.randint(classes, (256,), generator=generator)


MODELS = {
    "transformer": Model("transformer", new_transformer, token_batch),
    "resnet": Model("ResNet", new_resnet, image_batch),
    "perceptron": Model("perceptron", new_perceptron, vector_batch),
}


def loss_of(module: nn.Module, batch: Batch) -> Tensor:
    """Forward."""
    inputs, classes = batch
    return functional.cross_entropy(module(inputs).flatten(0, -2), classes.flatten())
