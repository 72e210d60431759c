# SPDX-License-Identifier: Apache-2.0
"""What is trained: built-in models, or what a function of the user makes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farandole.bench.models.gpt2 import VOCABULARY, Gpt2
from farandole.bench.models.mlp import Perceptron
from farandole.bench.models.resnet import Basic, resnet
from farandole.bench.models.vit import PIXELS, Vit
from farandole.errors import InvalidArgument, sentences

Batch = Any

_MLP_WIDTH = 64


@dataclass(frozen=True)
class Task:
    """A model with batches that fit it."""

    name: str
    new_model: Callable[[], nn.Module]
    new_batch: Callable[[int, str], Batch]
    """Of so many samples for a device; on the CPU, from torch's default generator."""
    loss: Callable[[nn.Module, Batch], Tensor]
    samples_on_cpu: int
    """Of each rank, by default."""
    samples_on_gpu: int


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the scores of classes, or of next tokens."""
    inputs, classes = batch
    return functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())


def images(samples: int, _: str) -> Batch:
    """224 x 224 pixels, and a class of 1000 for each."""
    return torch.randn(samples, 3, PIXELS, PIXELS), torch.randint(1000, (samples,))


def text(samples: int, device: str) -> Batch:
    """Sequences of 1024 tokens, 128 on the CPU, and each one's next tokens."""
    tokens = torch.randint(VOCABULARY, (samples, (128 if device == "cpu" else 1024) + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def numbers(samples: int, _: str) -> Batch:
    """Vectors and a class for each."""
    return torch.randn(samples, _MLP_WIDTH), torch.randint(_MLP_WIDTH, (samples,))


def small_model() -> nn.Module:
    """For numbers(), with next to no work."""
    return Perceptron(_MLP_WIDTH, 1)


BUILT_IN = {
    each.name: each
    for each in (
        Task("resnet18", lambda: resnet(64, [2, 2, 2, 2], Basic), images, classification_loss,
             4, 128),
        Task("resnet50", lambda: resnet(64, [3, 4, 6, 3]), images, classification_loss, 4, 64),
        Task("vit_s", lambda: Vit(384, 12, 6), images, classification_loss, 4, 64),
        Task("vit_b", lambda: Vit(768, 12, 12), images, classification_loss, 4, 64),
        Task("gpt2_small", lambda: Gpt2(768, 12, 12), text, classification_loss, 1, 8),
        Task("gpt2_medium", lambda: Gpt2(1024, 24, 16), text, classification_loss, 1, 4),
        Task("mlp2000", lambda: Perceptron(_MLP_WIDTH, 1000), numbers, classification_loss,
             32, 256),
    )
}  # fmt: skip


def task_of(name: str) -> Task:
    """The built-in task, or the one that "module:function" returns.

    The function takes nothing and returns (model, new_batch, loss): new_batch(samples) makes a
    batch, loss(model, batch) a scalar. Modules are also found in the current folder.

    Raises:
        InvalidArgument: there is no such task, or the function returns something else.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, function = name.partition(":")
    if not colon or not module or not function or module.startswith("."):
        raise _wrong(name, "it is neither a built-in model nor of the form module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise _wrong(name, str(error)) from error
    parts = make()
    if not isinstance(parts, tuple) or len(parts) != 3 or not isinstance(parts[0], nn.Module):
        raise _wrong(name, "it did not return (model, new_batch, loss)")
    _, new_batch, loss = parts
    return Task(name, lambda: make()[0], lambda samples, _: new_batch(samples), loss, 8, 64)


def _wrong(name: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "bench-model",
            f"--model asks for '{name}'.",
            f"{why}.",
            f"pass one of {', '.join(BUILT_IN)}, or module:function, where the function returns "
            "(model, new_batch, loss).",
        )
    )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on the device; tuples, lists and dicts are looked through."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to_device(each, device) for key, each in batch.items()}
    if isinstance(batch, (list, tuple)):
        moved = [to_device(each, device) for each in batch]
        is_named = hasattr(batch, "_fields")  # a named tuple takes its fields one by one
        return type(batch)(*moved) if is_named else type(batch)(moved)
    return batch
