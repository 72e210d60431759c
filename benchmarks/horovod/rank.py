# SPDX-License-Identifier: Apache-2.0
"""One rank of all lanes: SIZE SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line of run.py it answers with one line of JSON:

- "all_reduce <lane> <bytes> <calls>": nanoseconds of each call, and of the processor in a call;
- "verify <lane> <task>": trains three steps, and compares the parameters with those of one process
  that has the batches of all ranks;
- "steps <lane> <task> <steps>": when each step began and ended, and nanoseconds of the processor in
  a step.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import farandole
import horovod.torch as hvd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from benchmarks.ddp.models import Batch
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import Groups, both_joined
from benchmarks.horovod.tasks import TASKS, loss_of

VERIFIED_STEPS = 3
TOLERANCE = 1e-4
RATE = 1e-3


class Training:
    """A model with its optimizer, as the lane averages gradients."""

    def __init__(self, lane: str, model: nn.Module, groups: Groups) -> None:
        self.model = copy.deepcopy(model)
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.model.parameters(), lr=RATE, momentum=0.9
        )
        if lane == "horovod":
            self._optimizer = hvd.DistributedOptimizer(
                self._optimizer, named_parameters=self.model.named_parameters()
            )
        elif lane == "farandole":
            self.model = farandole.DistributedDataParallel(self.model)
        elif lane == "torch_gloo":
            self.model = TorchDistributedDataParallel(
                self.model, process_group=groups.gloo, gradient_as_bucket_view=True
            )

    def step(self, *batches: Batch) -> None:
        """Of one batch; or of the mean loss of several."""
        self._optimizer.zero_grad()
        for batch in batches:
            loss = loss_of(self.model, batch) / len(batches)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


class Rank:
    """The lanes of one rank."""

    def __init__(self, size: str, groups: Groups) -> None:
        self._size, self._groups = size, groups
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._trainings: dict[tuple[str, str], Training] = {}
        self._batches: dict[str, list[Batch]] = {}

    def answer(self, words: list[str]) -> dict[str, Any]:
        """Does what a line from run.py asks for."""
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "all_reduce": self._all_reduce,
            "verify": self._verify,
            "steps": self._steps,
        }
        return answers[words[0]](*words[1:])

    def _all_reduce(self, lane: str, size: str, calls: str) -> dict[str, Any]:
        tensor = torch.full((int(size) // 4,), float(self._rank))
        average = self._average(lane, tensor)
        right = bool((average() == (self._ranks - 1) / 2).all())  # then of equal tensors
        farandole.barrier()
        times, before = [], time.process_time_ns()
        for _ in range(int(calls)):
            begin = time.perf_counter_ns()
            average()
            times.append(time.perf_counter_ns() - begin)
        cpu = (time.process_time_ns() - before) / int(calls)
        return {"ns": times, "cpu_ns": cpu, "wrong": not right}

    def _average(self, lane: str, tensor: Tensor) -> Callable[[], Tensor]:
        def by_gloo() -> Tensor:
            dist.all_reduce(tensor, group=self._groups.gloo)  # it has no average
            return tensor.div_(self._ranks)

        def by_farandole() -> Tensor:
            farandole.all_reduce(tensor, op="avg")
            return tensor

        ways: dict[str, Callable[[], Tensor]] = {
            "farandole": by_farandole,
            "horovod": lambda: hvd.allreduce_(tensor, name="tensor"),
            "horovod_copy": lambda: hvd.allreduce(tensor, name="tensor"),
            "gloo": by_gloo,
        }
        return ways[lane]

    def _training(self, lane: str, task: str) -> Training:
        """Made at the first question about it."""
        if (lane, task) not in self._trainings:
            torch.manual_seed(0)  # the same parameters and batches on all ranks
            model = TASKS[task].new_model(self._size)
            self._batches[task] = [TASKS[task].new_batch(self._size) for _ in range(self._ranks)]
            self._trainings[lane, task] = Training(lane, model, self._groups)
        return self._trainings[lane, task]

    def _verify(self, lane: str, task: str) -> dict[str, Any]:
        training = self._training(lane, task)
        if lane == "alone":
            return {"wrong": 0}
        module = getattr(training.model, "module", training.model)  # without the wrapper
        plain = Training("alone", module, self._groups)
        for _ in range(VERIFIED_STEPS):
            training.step(self._batches[task][self._rank])
            plain.step(*self._batches[task])
        wrong = sum(
            int((~torch.isclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)).sum())
            for ours, theirs in zip(
                training.model.parameters(), plain.model.parameters(), strict=True
            )
        )
        return {"wrong": wrong}

    def _steps(self, lane: str, task: str, steps: str) -> dict[str, Any]:
        training = self._training(lane, task)
        if lane == "alone" and self._rank != 0:
            return {"begin_ns": [], "end_ns": []}
        begins, ends, cpu = [], [], 0
        for _ in range(int(steps)):
            if lane != "alone":
                farandole.barrier()
            before = time.process_time_ns()
            begins.append(time.perf_counter_ns())
            training.step(self._batches[task][self._rank])
            ends.append(time.perf_counter_ns())
            cpu += time.process_time_ns() - before
        return {"begin_ns": begins, "end_ns": ends, "cpu_ns": cpu / int(steps)}


if __name__ == "__main__":
    (size,), member = this_member()
    with both_joined(member) as groups:
        hvd.init()
        member.serve(Rank(size, groups).answer)
        hvd.shutdown()
