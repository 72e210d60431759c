# SPDX-License-Identifier: Apache-2.0
"""One emulated host whose ranks form groups: LAYOUT SOCKET FOLDER HOST HOSTS (from run.py).

It imports what takes seconds, then forks the ranks of each trial, as a launcher would start them:
with torchrun's variables and a store that is served beside the ranks of the first host. On a line
from run.py it answers with one line of JSON:

- fork <lane> <trial>: the ranks of this host are there and wait;
- form: when each began, when it had its group and when a first barrier was over, and the CPU
  seconds that the group took.
"""

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from typing import Any

import farandole
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from benchmarks.harness.answering import this_member
from benchmarks.hosts.emulated import address
from benchmarks.hosts.lanes import hosts_of
from benchmarks.hosts.timing import cpu_s

PORT = 29500  # of the first trial's store
LIMIT_S = 100  # of a rank that waits to be released
PR_SET_PDEATHSIG = 1
MEASURED = ["begin", "formed", "ready", "cpu_s"]


class Host:
    """The ranks of a host, of one trial at a time."""

    def __init__(self, layout: list[int], host: int) -> None:
        self.layout = layout
        self.host = host
        self.ranks = [rank for rank, each in enumerate(layout) if each == host]
        self.pids: list[int] = []
        self.store = 0  # the process that serves it, on the first host
        self.results = self.release = -1
        torch.set_num_threads(1)
        gc.collect()
        gc.freeze()  # so that forks do not write to it

    def answer(self, words: list[str]) -> dict[str, Any]:
        """See the module."""
        return self.fork(*words[1:]) if words[0] == "fork" else self.form()

    def fork(self, lane: str, trial: str) -> dict[str, Any]:
        """Returns when all wait for the other end of `release` to be closed."""
        self.store = serve_store(PORT + int(trial)) if self.host == 0 else 0  # before the pipes
        self.results, results = os.pipe()
        release, self.release = os.pipe()
        ready, is_ready = os.pipe()
        self.pids = []
        for local_rank in range(len(self.ranks)):
            if (pid := forked()) == 0:
                os.close(self.release)
                os.write(is_ready, b".")
                os.read(release, 1)
                self.run(local_rank, lane, trial, results)
            self.pids.append(pid)
        for end in (results, release, is_ready):
            os.close(end)
        with os.fdopen(ready) as file:
            for _ in self.ranks:
                file.read(1)
        return {}

    def form(self) -> dict[str, Any]:
        """Releases them, and ends with them."""
        os.close(self.release)
        with os.fdopen(self.results) as file:
            times = [[float(word) for word in line.split()] for line in file]
        for pid in self.pids:
            os.waitpid(pid, 0)
        if self.store:
            os.kill(self.store, signal.SIGKILL)
            os.waitpid(self.store, 0)
        if len(times) != len(self.ranks):
            raise RuntimeError(f"{len(self.ranks) - len(times)} ranks formed no group")
        return dict(zip(MEASURED, zip(*times, strict=True), strict=True))

    def run(self, local_rank: int, lane: str, trial: str, results: int) -> None:
        """A rank; ends its process."""
        os.environ |= self.variables(local_rank, trial)
        try:
            begin, begin_cpu = time.monotonic(), cpu_s()
            if lane == "farandole":
                farandole.init_process_group()
            else:
                dist.init_process_group("gloo")
            formed, used_cpu = time.monotonic(), cpu_s() - begin_cpu
            dist.barrier()
            os.write(results, f"{begin} {formed} {time.monotonic()} {used_cpu}\n".encode())
            dist.destroy_process_group()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def variables(self, local_rank: int, trial: str) -> dict[str, str]:
        """As torchrun sets them."""
        return {
            "RANK": str(self.ranks[local_rank]),
            "WORLD_SIZE": str(len(self.layout)),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": address(0),
            "MASTER_PORT": str(PORT + int(trial)),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


def forked() -> int:
    """As os.fork(); the child dies with its parent."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.alarm(LIMIT_S)
    return pid


def serve_store(port: int) -> int:
    """Serves it in a process of its own, as a launcher does; gives that when it is ready."""
    ready, is_ready = os.pipe()
    if (pid := forked()) == 0:
        store = TCPStore(address(0), port, is_master=True, wait_for_workers=False)
        os.write(is_ready, b".")
        while store:
            signal.pause()
    os.close(is_ready)
    os.read(ready, 1)
    os.close(ready)
    return pid


if __name__ == "__main__":
    (layout,), member = this_member()
    member.serve(Host(hosts_of(layout), member.rank).answer)
