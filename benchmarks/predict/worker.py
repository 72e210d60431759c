# SPDX-License-Identifier: Apache-2.0
"""One rank on an emulated host: SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line from run.py it answers with one line of JSON:

- link <bytes> <times>: the seconds of each all_reduce of so many bytes, and the CPU seconds of all;
- contention <bytes> <times>: what so many all_reduces and computation cost each other;
- steps <model> <size> <steps>: steps without communication, while all ranks compute at once, and
  training steps with DDP, by turns: what was recorded of the former, milliseconds of the latter.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import farandole
import torch
import torch.distributed as dist
from farandole.bench.predict import StepRecorder
from torch import nn

from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import joined
from benchmarks.hosts.timing import timed
from benchmarks.predict.contention import contention
from benchmarks.predict.models import MODELS, loss_of

UNCOUNTED, UNCOUNTED_LATER = 3, 1  # steps of the first answer about a model, and of others


class Rank:
    """What one rank keeps from question to question."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def answer(self, words: list[str]) -> dict[str, Any]:
        """See the module."""
        what, *rest = words
        if what == "link":
            return self.link(*map(int, rest))
        if what == "contention":
            return contention(*map(int, rest))
        model, size, steps = rest
        return self.steps(model, size, int(steps))

    def link(self, size: int, times: int) -> dict[str, Any]:
        """Of a tensor that no model has."""
        tensor = torch.zeros(size // 4)
        dist.all_reduce(tensor)
        return timed(lambda: dist.all_reduce(tensor), farandole.barrier, times)

    def steps(self, model: str, size: str, steps: int) -> dict[str, Any]:
        """All ranks begin each step at once."""
        uncounted = UNCOUNTED_LATER if f"{model} True" in self.made else UNCOUNTED
        plain, plain_optimizer = self.training(model, size, with_ddp=False)
        wrapped, optimizer = self.training(model, size, with_ddp=True)
        alone = self.step(model, size, plain, plain_optimizer)
        together = self.step(model, size, wrapped, optimizer)
        recorder = StepRecorder(plain, plain_optimizer, name=model, warm_up=uncounted)
        steps_ms, wall_s, cpu_s = [], 0.0, 0.0
        for _ in range(uncounted + steps):
            farandole.barrier()
            begin, begin_cpu_s = time.perf_counter(), time.process_time()
            with recorder.step():
                alone()
            wall_s += time.perf_counter() - begin
            cpu_s += time.process_time() - begin_cpu_s
            farandole.barrier()
            begin = time.perf_counter()
            together()
            steps_ms.append(1e3 * (time.perf_counter() - begin))
        recorder.close()
        sums = [each.detach().double().sum() for each in wrapped.parameters()]
        return {
            "recorded": asdict(recorder.recorded()),
            "cores": cpu_s / wall_s,
            "steps_ms": steps_ms[uncounted:],
            "checksum": float(sum(sums)),
        }

    def training(
        self, model: str, size: str, *, with_ddp: bool
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Made at the first question about it."""
        key = f"{model} {with_ddp}"
        if key not in self.made:
            torch.manual_seed(0)
            module = MODELS[model].new_model(size)
            optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
            wrapped = farandole.DistributedDataParallel(module) if with_ddp else module
            self.made[key] = wrapped, optimizer
        return self.made[key]

    def step(
        self, model: str, size: str, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Callable[[], None]:
        """Of training."""
        batch = MODELS[model].new_batch(size, torch.Generator().manual_seed(dist.get_rank()))

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            loss_of(module, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step


if __name__ == "__main__":
    _, member = this_member()
    with joined("farandole", member):
        member.serve(Rank().answer)
