# SPDX-License-Identifier: Apache-2.0
"""One rank of all lanes: TASK, SIZE SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line "<what> <lane> <steps>" from run.py it answers with one line of JSON, where <what> is

- verify: trains `steps` steps and compares the gradients of each with those that one process
  computes for the batches of all ranks;
- measure: the times of `steps` steps;
- memory: how much the process grew by in `steps` steps; in a process of its own.
"""

import copy
import time
from functools import partial
from typing import Any

import farandole
import torch
import torch.distributed as dist
from farandole.bench.memory import Steps, memory_growth
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.ddp.models import TASKS, Batch, Task
from benchmarks.ddp.ways import wrap_of
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import Groups, both_joined

RELATIVE, OF_LARGEST = 1e-5, 1e-6  # errors allowed, of each element and of the largest of all


class Rank:
    """The lanes of one rank. They share parameters, which nobody changes, but no gradients."""

    def __init__(self, task: Task, size: str, groups: Groups) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.groups = groups
        self.batches = [
            task.new_batch(size, torch.Generator().manual_seed(rank))
            for rank in range(self.world_size)
        ]
        torch.manual_seed(0)  # the same parameters on all ranks
        self.model = task.new_model(size)
        self.lanes: dict[str, nn.Module] = {}
        self.expected: list[Tensor] = []

    def answer(self, words: list[str]) -> dict[str, Any]:
        """Does what a line from run.py asks for."""
        answers = {"verify": self.verify, "measure": self.measure, "memory": self.memory}
        what, lane, steps = words
        return answers[what](lane, int(steps))

    def lane(self, name: str) -> nn.Module:
        """Made at the first question about it; its gradients' memory is kept for all rounds."""
        if name not in self.lanes:
            model = copy.deepcopy(self.model)
            for own, shared in zip(model.parameters(), self.model.parameters(), strict=True):
                own.data = shared.data
            self.lanes[name] = wrap_of(name)(model, self.groups)
        return self.lanes[name]

    def verify(self, name: str, steps: int) -> dict[str, Any]:
        """Wrong elements in any of `steps` steps."""
        lane = self.lane(name)
        is_local = name in {"alone", "local"}
        wrong = 0
        for _ in range(steps):
            lane.zero_grad(set_to_none=True)
            backward(lane, self.batches[self.rank])
            if not is_local:
                wrong += self.wrong_elements(lane)
        return {"wrong": wrong}

    def wrong_elements(self, lane: nn.Module) -> int:
        """Of the gradients, against the mean over the batches of all ranks."""
        self.expected = self.expected or self.mean_gradients()
        parameters = list(lane.parameters())
        if any(parameter.grad is None for parameter in parameters):
            return sum(parameter.numel() for parameter in parameters)
        largest = max(float(gradient.abs().max()) for gradient in self.expected)
        right = (
            torch.isclose(parameter.grad, expected, rtol=RELATIVE, atol=OF_LARGEST * largest).sum()
            for parameter, expected in zip(parameters, self.expected, strict=True)
            if parameter.grad is not None
        )
        return sum(parameter.numel() for parameter in parameters) - int(sum(right))

    def mean_gradients(self) -> list[Tensor]:
        """Without communication."""
        model = copy.deepcopy(self.model)
        for batch in self.batches:
            backward(model, batch)  # adds up
        gradients = [parameter.grad for parameter in model.parameters()]
        return [gradient / self.world_size for gradient in gradients if gradient is not None]

    def measure(self, name: str, steps: int) -> dict[str, Any]:
        """When forward began and backward ended; and what stats() tells, of Farandole's DDP."""
        lane = self.lane(name)
        if name == "alone" and self.rank != 0:
            return {"rank": self.rank, "begin_ns": [], "end_ns": []}
        begins, ends, stats = [], [], []
        for _ in range(steps):
            lane.zero_grad(set_to_none=True)
            if name != "alone":
                farandole.barrier()
            begins.append(time.perf_counter_ns())
            backward(lane, self.batches[self.rank])
            ends.append(time.perf_counter_ns())
            stats.append(exposed(lane))
        answer = {"rank": self.rank, "begin_ns": begins, "end_ns": ends}
        return {**answer, "stats": [each for each in stats if each is not None]}

    def memory(self, name: str, steps: int) -> dict[str, Any]:
        """Bytes beyond those of the model, the groups and the libraries."""
        first = wrap_of(name)(nn.Linear(8, 8), self.groups)  # loads what the lane is made of
        first(torch.ones(1, 8)).sum().backward()

        def make() -> Steps:
            lane = wrap_of(name)(self.model, self.groups)
            batch = self.batches[self.rank]
            return partial(lane.zero_grad, set_to_none=True), partial(backward, lane, batch)

        grown = memory_growth(make, steps)
        del grown["steady_bytes"]  # after backward only gradients stay
        return grown


def backward(lane: nn.Module, batch: Batch) -> None:
    """Forward and backward."""
    loss_of(lane, batch).backward()  # type: ignore[no-untyped-call]


def loss_of(lane: nn.Module, batch: Batch) -> Tensor:
    """Forward."""
    inputs, classes = batch
    return functional.cross_entropy(lane(inputs).flatten(0, -2), classes.flatten())


def exposed(lane: nn.Module) -> dict[str, Any] | None:
    """What stats() tells of the last backward, if it is Farandole's DDP."""
    if not isinstance(lane, farandole.DistributedDataParallel):
        return None
    times = lane.stats()
    return {"exposed_ms": times.exposed_ms, "is_latest": times.latest_rank == dist.get_rank()}


if __name__ == "__main__":
    (task, size), member = this_member()
    with both_joined(member) as groups:
        member.serve(Rank(TASKS[task], size, groups).answer)
