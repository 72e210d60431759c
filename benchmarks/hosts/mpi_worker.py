# SPDX-License-Identifier: Apache-2.0
"""One rank of the lanes over MPI: HOSTS SOCKET, started by mpirun on the emulated hosts.

It answers questions about all_reduce as worker.py does.
"""

import os
import socket
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import farandole
import numpy as np
import torch
from mpi4py import MPI

from benchmarks.harness.answering import Member
from benchmarks.hosts.emulated import address
from benchmarks.hosts.mpirun import host_name
from benchmarks.hosts.timing import timed

WORLD = MPI.COMM_WORLD


@cache
def join_over_mpi() -> None:
    """The default group of Farandole."""
    os.environ["FARANDOLE_LINK"] = "mpi"
    with socket.create_server((address(0) if WORLD.rank == 0 else "", 0)) as free:
        port = WORLD.bcast(free.getsockname()[1])
    init_method = f"tcp://{address(0)}:{port}"
    farandole.init_process_group(init_method=init_method, rank=WORLD.rank, world_size=WORLD.size)


def answer(words: list[str]) -> dict[str, Any]:
    """See worker.py."""
    _, lane, size, times = words
    tensor = np.full(int(size) // 4, 1 + WORLD.rank, dtype=np.float32)
    call: Callable[[], Any] = partial(WORLD.Allreduce, MPI.IN_PLACE, [tensor, MPI.FLOAT])
    if lane == "farandole_mpi":
        join_over_mpi()
        call = partial(farandole.all_reduce, torch.from_numpy(tensor))
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
