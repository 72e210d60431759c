# SPDX-License-Identifier: Apache-2.0
"""What is trained on GPUs: the models of benchmarks/ddp at the size of real batches."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from farandole.bench.models.resnet import resnet
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.ddp.models import Transformer

Batch = tuple[Tensor, Tensor]  # inputs and the right classes


@dataclass(frozen=True)
class Task:
    """A model with batches that fit it. `size` is "full" or "quick"."""

    name: str
    title: str
    new_model: Callable[[str], nn.Module]
    new_batch: Callable[[str, torch.Generator], Batch]


def new_resnet(size: str) -> nn.Module:
    """25.6 million parameters."""
    model = resnet(8, [1, 1, 1, 1]) if size == "quick" else resnet(64, [3, 4, 6, 3])
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def image_batch(size: str, generator: torch.Generator) -> Batch:
    """64 images of 224 x 224."""
    count, pixels = (2, 32) if size == "quick" else (64, 224)
    images = torch.randn(count, 3, pixels, pixels, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    return images, torch.randint(1000, (count,), generator=generator)


GPT2 = {"width": 768, "layers": 12, "heads": 12, "vocabulary": 25_920, "tokens": 1024}
TINY_GPT2 = {"width": 48, "layers": 3, "heads": 3, "vocabulary": 64, "tokens": 16}


def new_gpt2(size: str) -> nn.Module:
    """125 million parameters, of GPT-2 small; its vocabulary by half, as its head has its own."""
    return Transformer(**(TINY_GPT2 if size == "quick" else GPT2))


def token_batch(size: str, generator: torch.Generator) -> Batch:
    """Four sequences and each one's next tokens."""
    shape = TINY_GPT2 if size == "quick" else GPT2
    text = torch.randint(shape["vocabulary"], (4, shape["tokens"] + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


TASKS = {
    each.name: each
    for each in (
        Task("resnet50", "ResNet-50", new_resnet, image_batch),
        Task("gpt2", "transformer of GPT-2 small's size", new_gpt2, token_batch),
    )
}


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """In bfloat16 where autocast has it so."""
    inputs, classes = batch
    with torch.autocast(inputs.device.type, torch.bfloat16):
        return functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())
