# SPDX-License-Identifier: Apache-2.0
"""The MPI that mpirun belongs to, through mpi4py. Needs mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor

from farandole.bench.collectives.lanes import Call
from farandole.bench.collectives.operations import Operation

_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.uint8: MPI.UINT8_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
}
_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX, "none": MPI.SUM}


def is_of_these_ranks(rank: int, ranks: int) -> bool:
    """Whether mpi4py's world is the ranks of this run."""
    return (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (rank, ranks)


class MpiLane:
    """MPI on tensors of the CPU; in place where torch.distributed is."""

    name = "mpi"

    def call(
        self, operation: Operation, op: str, source: Tensor, target: Tensor, root: int
    ) -> Call:
        """See Lane."""
        if source.dtype not in _TYPES:
            raise NotImplementedError(f"MPI has no type for {source.dtype}")
        if op not in _OPS:
            raise NotImplementedError(f"MPI has no reduction {op}")
        world, reduction, kind = MPI.COMM_WORLD, _OPS[op], _TYPES[source.dtype]
        given: Any = [source.numpy(), kind]
        result: Any = [target.numpy(), kind]
        is_root = world.rank == root
        following, previous = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        if operation.name == "reduce":
            if is_root:
                return partial(world.Reduce, MPI.IN_PLACE, given, op=reduction, root=root)
            return partial(world.Reduce, given, None, op=reduction, root=root)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(world.Allreduce, MPI.IN_PLACE, given, op=reduction),
            "reduce_scatter": partial(world.Reduce_scatter_block, given, result, op=reduction),
            "all_gather": partial(world.Allgather, given, result),
            "broadcast": partial(world.Bcast, given, root=root),
            "gather": partial(world.Gather, given, result if is_root else None, root=root),
            "scatter": partial(world.Scatter, given if is_root else None, result, root=root),
            "all_to_all": partial(world.Alltoall, given, result),
            "send_recv": partial(world.Sendrecv, given, following, recvbuf=result, source=previous),
        }
        return calls[operation.name]
