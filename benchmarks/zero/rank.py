# SPDX-License-Identifier: Apache-2.0
"""One rank of all lanes: TASK SIZE REFERENCE SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line "<what> <lane> <steps>" from run.py it answers with one line of JSON, where <what> is

- verify: trains `steps` steps and compares the parameters with those that reference.py has put into
  the folder REFERENCE after as many steps as the lane has taken by then;
- measure: the times of `steps` steps;
- memory: how much the process grew by in `steps` steps; in a process of its own.
"""

import gc
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import farandole
import torch
import torch.distributed as dist
from farandole.bench.memory import Steps, memory_growth
from torch import Tensor, nn

from benchmarks.ddp.models import Task
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import Groups, both_joined
from benchmarks.zero.reference import reference_path
from benchmarks.zero.tasks import TASKS, batch_of, seeded_model
from benchmarks.zero.trainers import LEARNING_RATE, Trainer

# Errors allowed in a parameter: of its value, and of what a step changes it by at most.
OF_VALUE, OF_STEP = 1e-6, 1e-3


class Rank:
    """The lanes of one rank, which share nothing."""

    def __init__(self, task: Task, size: str, reference: Path, groups: Groups) -> None:
        self.task, self.size, self.reference, self.groups = task, size, reference, groups
        self.batch = batch_of(task, size, dist.get_rank())
        self.trainers: dict[str, Trainer] = {}

    def answer(self, words: list[str]) -> dict[str, Any]:
        """Does what a line from run.py asks for."""
        answers = {"verify": self.verify, "measure": self.measure, "memory": self.memory}
        what, lane, steps = words
        return answers[what](lane, int(steps))

    def trainer(self, lane: str) -> Trainer:
        """Made at the first question about it; its memory is kept for all rounds."""
        if lane not in self.trainers:
            self.trainers[lane] = Trainer(lane, seeded_model(self.task, self.size), self.groups)
        return self.trainers[lane]

    def verify(self, lane: str, steps: int) -> dict[str, Any]:
        """Wrong parameters after `steps` more steps, and a digest of all, which ranks compare."""
        trainer = self.trainer(lane)
        for _ in range(steps):
            trainer.optimizer.zero_grad(set_to_none=True)
            trainer.step(self.batch)
        answer = {"state_bytes": trainer.state_bytes()}
        if lane == "local":  # each rank has trained for itself
            return {**answer, "wrong": 0, "digest": "", "largest_error": 0.0}
        expected = torch.load(reference_path(self.reference, trainer.steps), mmap=True)
        parameters = [each.detach() for each in trainer.module.parameters()]
        wrong, largest = compare(parameters, expected)
        return {**answer, "wrong": wrong, "digest": digest(parameters), "largest_error": largest}

    def measure(self, lane: str, steps: int) -> dict[str, Any]:
        """When each step began, when backward ended and when the step did."""
        trainer = self.trainer(lane)
        times = []
        for _ in range(steps):
            trainer.optimizer.zero_grad(set_to_none=True)
            farandole.barrier()
            times.append(trainer.step(self.batch))
        begins, middles, ends = zip(*times, strict=True)
        return {"begin_ns": begins, "middle_ns": middles, "end_ns": ends}

    def memory(self, lane: str, steps: int) -> dict[str, Any]:
        """Bytes beyond those of the groups and the libraries."""
        first = Trainer(lane, nn.Linear(8, 8), self.groups)  # loads what the lane is made of
        first.step((torch.ones(1, 8), torch.zeros(1, dtype=torch.long)))
        del first
        gc.collect()

        def make() -> Steps:
            trainer = self.trainer(lane)
            clear = partial(trainer.optimizer.zero_grad, set_to_none=True)
            return clear, partial(trainer.step, self.batch)

        return memory_growth(make, steps)


def compare(parameters: list[Tensor], expected: list[Tensor]) -> tuple[int, float]:
    """How many elements are wrong, and the largest error beyond OF_VALUE in learning rates."""
    wrong, largest = 0, 0.0
    for own, other in zip(parameters, expected, strict=True):
        errors = ((own - other).abs() - OF_VALUE * other.abs()) / LEARNING_RATE
        wrong += errors.numel() - int((errors <= OF_STEP).sum())  # NaN is wrong too
        largest = max(largest, float(errors.max()))
    return wrong, largest


def digest(parameters: list[Tensor]) -> str:
    """Of all bits."""
    bits = hashlib.sha256()
    for parameter in parameters:
        bits.update(parameter.contiguous().numpy().data)
    return bits.hexdigest()


if __name__ == "__main__":
    (task, size, reference), member = this_member()
    with both_joined(member) as groups:
        member.serve(Rank(TASKS[task], size, Path(reference), groups).answer)
