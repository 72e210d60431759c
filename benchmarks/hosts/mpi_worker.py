# SPDX-License-Identifier: Apache-2.0
"""One rank of the OpenMPI lane: HOSTS SOCKET, started by mpirun on the emulated hosts.

It answers questions about all_reduce as worker.py does.
"""

import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.harness.answering import Member
from benchmarks.hosts.mpirun import host_name
from benchmarks.hosts.timing import timed

WORLD = MPI.COMM_WORLD


def answer(words: list[str]) -> dict[str, Any]:
    """See worker.py."""
    _, _, size, times = words
    tensor = np.full(int(size) // 4, 1 + WORLD.rank, dtype=np.float32)
    call: Callable[[], Any] = partial(WORLD.Allreduce, MPI.IN_PLACE, [tensor, MPI.FLOAT])
    call()
    wrong = int((tensor != WORLD.size * (WORLD.size + 1) // 2).sum())
    tensor[:] = 0
    return {**timed(call, WORLD.Barrier, int(times)), "wrong": wrong}


if __name__ == "__main__":
    hosts, path = sys.argv[1:]
    wanted, found = host_name(int(hosts.split(",")[WORLD.rank])), socket.gethostname()
    if wanted != found:
        raise RuntimeError(f"mpirun started rank {WORLD.rank} on {found} instead of {wanted}")
    Member(path, "", WORLD.rank, WORLD.size).serve(answer)  # mpirun makes them meet
