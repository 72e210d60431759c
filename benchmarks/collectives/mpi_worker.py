# SPDX-License-Identifier: Apache-2.0
"""One rank of the OpenMPI lane: SOCKET, started by mpirun from run.py."""

import functools
import sys

import numpy as np
from mpi4py import MPI
from worker import Array, Call, Rank

WORLD = MPI.COMM_WORLD


def make_buffer(count: int) -> tuple[Array, Call]:
    """A numpy array and MPI's in-place Allreduce of it; SUM is mpi4py's default."""
    array = np.empty(count, dtype=np.float32)
    return array, functools.partial(WORLD.Allreduce, MPI.IN_PLACE, [array, MPI.FLOAT])


if __name__ == "__main__":
    Rank(WORLD.rank, WORLD.size, make_buffer, WORLD.Barrier).serve(sys.argv[1])
