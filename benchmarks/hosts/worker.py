# SPDX-License-Identifier: Apache-2.0
"""One rank on an emulated host: HOSTS SOCKET FOLDER RANK WORLD_SIZE (from run.py).

HOSTS: the host of each rank, as 0,0,1,1. On a line from run.py it answers with one line of JSON:

- all_reduce <lane> <bytes> <times>: the seconds of each, and the CPU seconds of all together;
- steps <lane> <size> <times>: the same of forward and backward of the transformer.
"""

import copy
import resource
import time
from collections.abc import Callable
from typing import Any

import farandole
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from benchmarks.ddp.training import backward
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import Groups, both_joined
from benchmarks.hosts.wires import Wires
from benchmarks.zero.tasks import TASKS, batch_of, seeded_model

TASK = TASKS["transformer"]


def cpu_s() -> float:
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Rank:
    """What one rank keeps from question to question."""

    def __init__(self, hosts: list[int], groups: Groups) -> None:
        self.rank = dist.get_rank()
        self.hosts = hosts
        self.groups = groups
        local = hosts[: self.rank].count(hosts[self.rank])
        self.stripes = min(hosts.count(host) for host in hosts)
        peers = [
            rank
            for rank, host in enumerate(hosts)
            if host != hosts[self.rank] and hosts[:rank].count(host) == local < self.stripes
        ]
        self.wires = Wires(peers, groups.gloo)
        self.lanes: dict[str, nn.Module] = {}

    def answer(self, words: list[str]) -> dict[str, Any]:
        """See the module."""
        what, lane, size, times = words
        of = self.all_reduce if what == "all_reduce" else self.step
        call, verify = of(lane, size)
        call()
        wrong = verify()
        seconds, begin_cpu = [], cpu_s()
        for _ in range(int(times)):
            farandole.barrier()
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds, "cpu_s": cpu_s() - begin_cpu, "wrong": wrong}

    def all_reduce(self, lane: str, size: str) -> tuple[Callable[[], Any], Callable[[], int]]:
        """What to time, and how many elements it got wrong in its first call."""
        if lane == "raw":
            count = len(set(self.hosts))
            own = int(size) // self.stripes
            moved = own if count == 2 else 2 * own // count
            return lambda: self.wires.exchange(moved), lambda: 0
        group = self.groups.gloo if lane == "gloo" else self.groups.farandole
        dtype = torch.bfloat16 if lane.endswith("bf16") else torch.float32
        tensor = torch.full((int(size) // 4,), 1 + self.rank, dtype=dtype)
        world_size = dist.get_world_size()
        expected = world_size * (world_size + 1) // 2

        def verify() -> int:
            wrong = int((tensor != expected).sum())
            tensor.zero_()
            return wrong

        return lambda: dist.all_reduce(tensor, group=group), verify

    def step(self, lane: str, size: str) -> tuple[Callable[[], Any], Callable[[], int]]:
        """Forward and backward; gradients are the same on all ranks, unless they are alone."""
        module = self.module(lane, size)
        batch = batch_of(TASK, size, self.rank)

        def call() -> None:
            module.zero_grad(set_to_none=True)
            backward(module, batch)

        def verify() -> int:
            if lane == "alone":
                return 0
            gradients = [parameter.grad for parameter in module.parameters()]
            sums = torch.stack([each.double().sum() for each in gradients if each is not None])
            others = [torch.empty_like(sums) for _ in self.hosts]
            dist.all_gather(others, sums, group=self.groups.gloo)
            return sum(int((other != sums).sum()) for other in others)

        return call, verify

    def module(self, lane: str, size: str) -> nn.Module:
        """Made once."""
        name = f"{lane} {size}"
        if name in self.lanes:
            return self.lanes[name]
        self.lanes.clear()  # one model's memory at a time
        model = copy.deepcopy(seeded_model(TASK, size))
        if lane.startswith("farandole"):
            wire = torch.bfloat16 if lane.endswith("bf16") else None
            model = farandole.DistributedDataParallel(
                model, process_group=self.groups.farandole, wire_dtype=wire
            )
        elif lane != "alone":
            model = TorchDistributedDataParallel(model, process_group=self.groups.gloo)
            if lane.endswith("bf16"):
                model.register_comm_hook(self.groups.gloo, bf16_compress_hook)
        self.lanes[name] = model
        return model


if __name__ == "__main__":
    (hosts,), member = this_member()
    with both_joined(member) as groups:
        member.serve(Rank([int(host) for host in hosts.split(",")], groups).answer)
