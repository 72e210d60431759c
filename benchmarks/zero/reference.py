# SPDX-License-Identifier: Apache-2.0
"""A plain process that trains on all batches: TASK SIZE RANKS REFERENCE (from run.py).

On a line of numbers of steps it trains so many, and writes the parameters that there are after each
number into the folder REFERENCE.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW

from benchmarks.ddp.models import Task
from benchmarks.ddp.training import backward
from benchmarks.harness.answering import this_member
from benchmarks.zero.tasks import TASKS, batch_of, seeded_model
from benchmarks.zero.trainers import EPSILON, LEARNING_RATE


def reference_path(folder: Path, steps: int) -> Path:
    """Of the parameters after so many steps."""
    return folder / f"{steps}.pt"


def train(task: Task, size: str, ranks: int, folder: Path, words: list[str]) -> dict[str, Any]:
    """On the mean gradients, which are those of all batches as one, with torch's plain loops."""
    model = seeded_model(task, size)
    optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPSILON, foreach=False)
    batches = (batch_of(task, size, rank) for rank in range(ranks))
    inputs, classes = (torch.cat(parts) for parts in zip(*batches, strict=True))
    wanted = [*map(int, words)]
    for step in range(1, max(wanted) + 1):
        optimizer.zero_grad(set_to_none=True)
        backward(model, (inputs, classes))
        optimizer.step()
        if step in wanted:
            parameters = [parameter.detach() for parameter in model.parameters()]
            torch.save(parameters, reference_path(folder, step))
    return {}


if __name__ == "__main__":
    (task, size, ranks, folder), member = this_member()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    member.serve(lambda words: train(TASKS[task], size, int(ranks), Path(folder), words))
