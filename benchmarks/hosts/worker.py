# SPDX-License-Identifier: Apache-2.0
"""One rank on an emulated host: HOSTS SOCKET FOLDER RANK WORLD_SIZE (from run.py).

HOSTS: the host of each rank, as 0,0,1,1. On a line from run.py it answers with one line of JSON:

- all_reduce <lane> <bytes> <times>: the seconds of each, and the CPU seconds of all together;
- steps <lane> <size> <times>: the same of training steps of the transformer.

Of the lane "raw" both give bytes.
"""

from collections.abc import Callable
from typing import Any

import farandole
import torch
import torch.distributed as dist

from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import Groups, both_joined
from benchmarks.hosts.lanes import hosts_of
from benchmarks.hosts.timing import timed
from benchmarks.hosts.training import Training
from benchmarks.hosts.wires import Wires

Timed = tuple[Callable[[], Any], Callable[[], int]]  # and how many elements a first call got wrong


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
        self.training = Training(groups)

    def answer(self, words: list[str]) -> dict[str, Any]:
        """See the module."""
        what, lane, size, times = words
        if lane == "raw":
            call, verify = self.raw(int(size))
        elif what == "all_reduce":
            call, verify = self.all_reduce(lane, int(size))
        else:
            call, verify = self.training.steps(lane, size)
        call()
        wrong = verify()
        in_turn = what == "steps"
        return {**timed(call, farandole.barrier, int(times), in_turn=in_turn), "wrong": wrong}

    def raw(self, size: int) -> Timed:
        """Sends and receives as many bytes as an all_reduce of `size` must."""
        count = len(set(self.hosts))
        own = size // self.stripes
        moved = own if count == 2 else 2 * own // count
        return lambda: self.wires.exchange(moved), lambda: 0

    def all_reduce(self, lane: str, size: int) -> Timed:
        """Of `size` bytes in float32, or as many elements in bfloat16."""
        group = self.groups.gloo if lane == "gloo" else self.groups.farandole
        dtype = torch.bfloat16 if lane.endswith("bf16") else torch.float32
        tensor = torch.full((size // 4,), 1 + self.rank, dtype=dtype)
        world_size = dist.get_world_size()
        expected = world_size * (world_size + 1) // 2

        def verify() -> int:
            wrong = int((tensor != expected).sum())
            tensor.zero_()
            return wrong

        return lambda: dist.all_reduce(tensor, group=group), verify


if __name__ == "__main__":
    (layout,), member = this_member()
    with both_joined(member) as groups:
        member.serve(Rank(hosts_of(layout), groups).answer)
