# SPDX-License-Identifier: Apache-2.0
"""One rank of the OpenMPI lane: SOCKET, started by mpirun from run.py."""

import sys
from functools import partial

import numpy as np
from mpi4py import MPI

from benchmarks.collectives.definition import ROOT, Array, uneven_splits
from benchmarks.collectives.worker import Call, Worker, in_turns
from benchmarks.harness.answering import Member

WORLD = MPI.COMM_WORLD


class MpiLibrary:
    """MPI on numpy arrays; SUM is mpi4py's default. In place where torch.distributed is."""

    rank = WORLD.rank
    world_size = WORLD.size

    def empty(self, elements: int) -> Array:
        """As numpy makes it."""
        return np.empty(elements, dtype=np.float32)

    def call(self, operation: str, source: Array, target: Array, pieces: int) -> Call:
        """See Library."""
        inputs, output = [source, MPI.FLOAT], [target, MPI.FLOAT]
        is_root = self.rank == ROOT
        if operation == "reduce":
            if is_root:
                return partial(WORLD.Reduce, MPI.IN_PLACE, inputs, root=ROOT)
            return partial(WORLD.Reduce, inputs, None, root=ROOT)
        if operation == "all_to_all_v":
            pieces_of = uneven_splits(self.rank, self.world_size, len(source))
            uneven = [source, pieces_of, MPI.FLOAT], [target, pieces_of, MPI.FLOAT]
            return partial(WORLD.Alltoallv, *uneven)
        if operation == "send_recv":
            peer = self.rank ^ 1
            both = partial(WORLD.Send, inputs, peer), partial(WORLD.Recv, output, peer)
            return in_turns(self.rank, *both)
        if operation == "send_stream":
            return self.send_stream(source, target, pieces)
        calls: dict[str, Call] = {
            "all_reduce": partial(WORLD.Allreduce, MPI.IN_PLACE, inputs),
            "reduce_scatter": partial(WORLD.Reduce_scatter_block, inputs, output),
            "all_gather": partial(WORLD.Allgather, inputs, output),
            "broadcast": partial(WORLD.Bcast, inputs, root=ROOT),
            "gather": partial(WORLD.Gather, inputs, output if is_root else None, root=ROOT),
            "scatter": partial(WORLD.Scatter, inputs if is_root else None, output, root=ROOT),
            "all_to_all": partial(WORLD.Alltoall, inputs, output),
            "barrier": WORLD.Barrier,
        }
        return calls[operation]

    def send_stream(self, source: Array, target: Array, pieces: int) -> Call:
        """All pieces at once from the even rank to the odd one, which then acknowledges them."""
        peer, sends = self.rank ^ 1, self.rank % 2 == 0
        begin = WORLD.Isend if sends else WORLD.Irecv
        finish = WORLD.Recv if sends else WORLD.Send
        messages = np.split(source if sends else target, pieces)
        acknowledgement = np.zeros(1, dtype=np.float32)

        def stream() -> None:
            MPI.Request.Waitall([begin(each, peer, tag) for tag, each in enumerate(messages)])
            finish(acknowledgement, peer, pieces)

        return stream


if __name__ == "__main__":
    member = Member(sys.argv[1], "", WORLD.rank, WORLD.size)  # mpirun makes them meet
    member.serve(Worker(MpiLibrary()).answer)
