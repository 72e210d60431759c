# SPDX-License-Identifier: Apache-2.0
"""What is saved: the models of benchmarks/zero, and one of 350 million parameters."""

from torch import nn

from benchmarks.ddp.models import Batch, Task, Transformer
from benchmarks.zero.tasks import TASKS as ZERO_TASKS


def new_medium(size: str) -> nn.Module:
    """GPT-2 medium's, but for the vocabulary: as many as fit with a head of its own."""
    if size == "quick":
        return Transformer(width=64, layers=2, heads=2, vocabulary=64, tokens=16)
    return Transformer(width=1024, layers=24, heads=16, vocabulary=23_000, tokens=128)


def no_batch(size: str, generator: object) -> Batch:
    """Nothing is trained on it."""
    raise NotImplementedError


MEDIUM = Task("medium", "transformer with 350 million parameters", 2, 1, new_medium, no_batch)
TASKS = {**ZERO_TASKS, MEDIUM.name: MEDIUM}
ONE_AT_A_TIME = (MEDIUM.name,)
"""Of which the memory of a machine does not hold several lanes at once."""
