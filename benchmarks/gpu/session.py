# SPDX-License-Identifier: Apache-2.0
"""One rank of a run: its device, both libraries' groups, and clocks that all ranks share."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from farandole.bench.rounds import interleaved, percentile

from benchmarks.gpu import machine
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, say

MEET_WITHIN_S = 300
Bodies = Mapping[str, Callable[[], object]]  # by lane


@dataclass(frozen=True)
class Session:
    """Threads: one. All ranks call the same methods in the same order."""

    accelerator: Accelerator
    device: torch.device
    ours: dist.ProcessGroup
    peer: dist.ProcessGroup  # torch's over NCCL; on the simulated device another one of ours
    size: str  # "full" or "quick"
    rounds: int

    @property
    def rank(self) -> int:
        """Of this process."""
        return dist.get_rank()

    @property
    def ranks(self) -> int:
        """How many there are."""
        return dist.get_world_size()

    def fields(self) -> Row:
        """Of every row."""
        hosts = self.ranks // int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks))
        what = {"size": self.size, "ranks": self.ranks, "hosts": hosts}
        return {**what, **machine.describe(self.accelerator)}

    def say(self, line: str) -> None:
        """Progress, once."""
        if self.rank == 0:
            say(line)

    def check(self, wrong: int, what: str) -> None:
        """Raises RuntimeError on all ranks if something is wrong on any."""
        total = torch.tensor(wrong)
        dist.all_reduce(total, group=self.ours)  # on the CPU
        if total:
            raise RuntimeError(f"{what}: {int(total)} wrong elements")

    def device_ms(self, bodies: Bodies, iterations: int) -> dict[str, list[float]]:
        """What an iteration took on the device of the slowest rank: by lane, one entry a round."""
        return self._rounds(bodies, lambda body: self._one_device_ms(body, iterations))

    def host_us(self, bodies: Bodies, iterations: int) -> dict[str, list[float]]:
        """What an iteration took on the host of the slowest rank, in the median of a round."""
        return self._rounds(bodies, lambda body: self._one_host_us(body, iterations))

    def _rounds(
        self, bodies: Bodies, measure: Callable[[Callable[[], object]], float]
    ) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {lane: [] for lane in bodies}
        for lanes in interleaved([*bodies], self.rounds):
            for lane in lanes:
                self.accelerator.settle()
                dist.barrier(group=self.ours)
                times[lane].append(measure(bodies[lane]))
        return {lane: self._slowest(own) for lane, own in times.items()}

    def _one_device_ms(self, body: Callable[[], object], iterations: int) -> float:
        event: Any = self.accelerator.module.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(iterations):
            body()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / iterations

    def _one_host_us(self, body: Callable[[], object], iterations: int) -> float:
        times = []
        for _ in range(iterations):
            begin = time.perf_counter_ns()
            body()
            times.append(time.perf_counter_ns() - begin)
        return statistics.median(times) / 1e3

    def _slowest(self, own: list[float]) -> list[float]:
        times = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX, group=self.ours)  # on the CPU
        return [float(each) for each in times]


def median_row(times: Sequence[float], unit: str) -> Row:
    """Median and quartiles of the rounds; `unit` as in the names of fields, "ms" or "us"."""
    quartiles = [round(percentile(times, each), 4) for each in (25, 75)]
    median = round(statistics.median(times), 4)
    return {f"median_{unit}": median, f"quartiles_{unit}": quartiles, "rounds": len(times)}


def ratio_row(own: list[float], other: list[float], name: str) -> Row:
    """The median of own / other in the same round, and quartiles, in fields of that name."""
    found = compared(own, other)
    return {name: found["ratio"], f"{name}_quartiles": found["ratio_quartiles"]}


@contextmanager
def joined(accelerator: Accelerator, size: str, rounds: int) -> Iterator[Session]:
    """In a rank that torchrun has started, or in a process alone."""
    os.environ.update(accelerator.environment())
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    import farandole

    accelerator.load()
    index = int(os.environ.get("LOCAL_RANK", "0"))
    accelerator.module.set_device(index)
    torch.backends.cudnn.benchmark = True
    ours = farandole.init_process_group(timeout=MEET_WITHIN_S)
    peer = dist.new_group(backend="nccl" if accelerator.type == "cuda" else "farandole")
    yield Session(accelerator, accelerator.device(index), ours, peer, size, rounds)
    accelerator.settle()
    dist.barrier(group=ours)
    dist.destroy_process_group()
