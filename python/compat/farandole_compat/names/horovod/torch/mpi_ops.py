# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on tensors: farandole.named's, by Horovod's names and arguments."""

from __future__ import annotations

from farandole.named import operations

from horovod.common.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from horovod.common.exceptions import HorovodInternalError, as_horovod
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    named_of,
    remove_process_set,
)
from horovod.common.timeline import start_timeline, stop_timeline
from horovod.torch.compression import Compression
from horovod.torch.moves import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from horovod.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from horovod.torch.running import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    poll,
    synchronize,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def join(device: int = -1) -> int:
    """Take part with zeros in what others reduce until all ranks have joined; who joined last."""
    named = named_of(global_process_set)
    with as_horovod():
        named.wait(named.join(None if device < 0 else device))
    return named.last_joined


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    named = named_of(process_set)
    with as_horovod():
        named.wait(operations.barrier(named))
