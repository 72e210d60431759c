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
import sys
from pathlib import Path
from typing import Any

import farandole
import torch
import torch.distributed as dist
import usage
from answering import serve
from models import Task
from reference import reference_path
from tasks import TASKS, batch_of, seeded_model
from torch import Tensor, nn
from torch_worker import joined
from trainers import LEARNING_RATE, Trainer
from ways import Groups

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
        share, resident = usage.share_bytes(), usage.resident_bytes()
        usage.forget_most_resident()
        peaks = []  # of each step; the first one's has what the wrapper and the optimizer take
        peak = usage.Peak()
        trainer = self.trainer(lane)
        for step in range(steps):
            trainer.optimizer.zero_grad(set_to_none=True)
            if step:
                peak.forget()
            trainer.step(self.batch)
            peaks.append(peak.bytes() - share)
        peak.stop()
        return {
            "peak_bytes": max(peaks),
            "last_peak_bytes": peaks[-1],
            "steady_bytes": usage.share_bytes() - share,  # with the gradients of the last step
            "resident_bytes": usage.most_resident_bytes() - resident,
        }


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
        bits.update(parameter.contiguous().numpy())
    return bits.hexdigest()


def main(
    task: str, size: str, reference: str, path: str, folder: str, rank: int, world_size: int
) -> None:
    """Joins the groups and serves run.py."""
    with joined("farandole", folder, rank, world_size):
        groups = Groups(farandole.default_group(), dist.new_group(backend="gloo"))
        serve(rank, path, Rank(TASKS[task], size, Path(reference), groups).answer)


if __name__ == "__main__":
    main(*sys.argv[1:6], *map(int, sys.argv[6:8]))
