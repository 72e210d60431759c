# SPDX-License-Identifier: Apache-2.0
"""What is trained: the transformer of benchmarks/ddp, and one of GPT-2 small's size."""

import torch
from torch import nn

from benchmarks.ddp.models import TASKS as DDP_TASKS
from benchmarks.ddp.models import Batch, Task, Transformer


def new_gpt2(size: str) -> nn.Module:
    """125 million parameters; the vocabulary is GPT-2's by half, as its head has its own."""
    if size == "quick":
        return Transformer(width=48, layers=3, heads=3, vocabulary=64, tokens=16)
    return Transformer(width=768, layers=12, heads=12, vocabulary=25_920, tokens=128)


def gpt2_batch(size: str, generator: torch.Generator) -> Batch:
    """One sequence and its next tokens."""
    vocabulary, tokens = (64, 16) if size == "quick" else (25_920, 128)
    text = torch.randint(vocabulary, (1, tokens + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


TASKS = {
    each.name: each
    for each in (
        DDP_TASKS["transformer"],
        Task("gpt2", "transformer of GPT-2 small's size", 2, 1, new_gpt2, gpt2_batch),
    )
}


def parameters_of(task: Task, size: str) -> int:
    """How many elements; allocates none."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in task.new_model(size).parameters())


def batch_of(task: Task, size: str, rank: int) -> Batch:
    """The one that `rank` trains on in every step."""
    return task.new_batch(size, torch.Generator().manual_seed(rank))


def seeded_model(task: Task, size: str) -> nn.Module:
    """With the same parameters each time."""
    torch.manual_seed(0)
    return task.new_model(size)
