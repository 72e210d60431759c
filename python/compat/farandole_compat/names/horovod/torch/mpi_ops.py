# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on tensors: farandole.named's, by Horovod's names and arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.named import Handle, NamedCollectives, differentiable, operations
from farandole.named.compression import Compressor
from farandole.named.sparse import sparse_all_reduce
from torch import Tensor

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
    start_timeline,
    stop_timeline,
)
from horovod.common.exceptions import HorovodInternalError, as_horovod
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    named_of,
    remove_process_set,
)
from horovod.torch.compression import Compression

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

Average, Sum, Adasum, Min, Max, Product = range(6)
_OPS = ("average", "sum", "adasum", "min", "max", "product")


class _Running:
    """What asynchronous operations return; synchronize() takes its result once."""

    def __init__(
        self, named: NamedCollectives, handle: Handle, result: Callable[[list[Tensor]], Any]
    ) -> None:
        self.named, self.handle, self._result = named, handle, result
        self._is_taken = False

    def take(self) -> Any:
        if self._is_taken:
            return None
        self._is_taken = True
        return self._result(self.named.wait(self.handle))


def _first(results: list[Tensor]) -> Tensor:
    return results[0]


def op_name(op: int | None, average: bool | None = None) -> str:
    """Farandole's name of one of Horovod's reductions.

    Raises:
        InvalidArgument: there is none, or both ``op`` and ``average`` are given.
    """
    if op is not None and average is not None:
        raise InvalidArgument(
            sentences(
                "horovod-op-and-average",
                "an operation got both op and average.",
                "op is the newer name of the same.",
                "pass op alone.",
            )
        )
    if average is not None:
        warnings.warn(
            "the argument average is Horovod's old name: pass op=hvd.Average or op=hvd.Sum.",
            DeprecationWarning,
            stacklevel=3,
        )
        op = Average if average else Sum
    if op is None:
        op = Average
    if op not in range(len(_OPS)):
        raise InvalidArgument(
            sentences(
                "horovod-op",
                f"an operation got op={op!r}.",
                "it takes one of Average, Sum, Adasum, Min, Max and Product.",
                "pass hvd.Average, say.",
            )
        )
    return _OPS[op]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to reduce tensors together."""
    return _reduce(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=False
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to replace tensors by their reductions, together."""
    return _reduce(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Replace tensors by their reductions, together."""
    running = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    results: list[Tensor] = synchronize(running)
    return results


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce tensors together, with gradients."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    with as_horovod():
        results = differentiable.all_reduce(
            named_of(process_set),
            [tensor for tensor, _ in compressed],
            name,
            op=op_name(op, average),
            prescale=prescale_factor,
            postscale=postscale_factor,
        )
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to reduce a tensor."""
    running = grouped_allreduce_async(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return _Running(running.named, running.handle, _first)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to replace a tensor by its reduction."""
    running = grouped_allreduce_async_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return _Running(running.named, running.handle, lambda _: tensor)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor, with gradients."""
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Replace a tensor by its reduction."""
    grouped_allreduce_([tensor], average, name, op, prescale_factor, postscale_factor, process_set)
    return tensor


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Begin to reduce a sparse tensor; call what it returns for the result."""
    with as_horovod():
        running = sparse_all_reduce(named_of(process_set), tensor, name, op=op_name(op))

    def wait() -> Tensor:
        with as_horovod():
            return running.wait()

    return wait


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to join tensors with those of the other ranks, together."""
    named = named_of(process_set)
    with as_horovod():
        return _Running(named, operations.all_gather(named, list(tensors), name), list)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Join tensors with those of the other ranks, together, with gradients."""
    with as_horovod():
        return differentiable.all_gather(named_of(process_set), list(tensors), name)


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> _Running:
    """Begin to join a tensor with those of the other ranks along the first dimension."""
    running = grouped_allgather_async([tensor], name, process_set)
    return _Running(running.named, running.handle, _first)


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Join a tensor with those of the other ranks along the first dimension, with gradients."""
    return grouped_allgather([tensor], name, process_set)[0]


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to get the tensor of a rank, which is counted among all ranks."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=False)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to replace a tensor by that of a rank."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=True)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The tensor of a rank, with gradients."""
    root = root_in(process_set, root_rank)
    with as_horovod():
        return differentiable.broadcast(named_of(process_set), tensor, root, name)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Replace a tensor by that of a rank."""
    synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return tensor


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> _Running:
    """Begin to send rows to each rank; its result has also how many came from each."""
    named = named_of(process_set)
    with as_horovod():
        handle = operations.all_to_all(named, tensor, _splits(splits), name)
    return _Running(
        named, handle, lambda results: (results[0], _received(splits, handle.received_splits))
    )


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Send rows to each rank, with gradients; with splits also how many came from each."""
    with as_horovod():
        result, received = differentiable.all_to_all(
            named_of(process_set), tensor, _splits(splits), name
        )
    return result if splits is None else (result, _received(splits, received))


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Running:
    """Begin to get this rank's rows of the reductions of tensors, together."""
    named = named_of(process_set)
    with as_horovod():
        handle = operations.reduce_scatter(
            named,
            list(tensors),
            name,
            op=_sum_or_average(op),
            prescale=prescale_factor,
            postscale=postscale_factor,
        )
    return _Running(named, handle, list)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """This rank's rows of the reductions of tensors, together, with gradients."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    with as_horovod():
        results = differentiable.reduce_scatter(
            named_of(process_set),
            [tensor for tensor, _ in compressed],
            name,
            op=_sum_or_average(op),
            prescale=prescale_factor,
            postscale=postscale_factor,
        )
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Running:
    """Begin to get this rank's rows of the reduction of a tensor."""
    running = grouped_reducescatter_async(
        [tensor], name, op, process_set, prescale_factor, postscale_factor
    )
    return _Running(running.named, running.handle, _first)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the reduction of a tensor, with gradients."""
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


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


def poll(handle: _Running) -> bool:
    """Whether synchronize() would return at once."""
    return handle.handle.done


def synchronize(handle: _Running | Callable[[], Tensor]) -> Any:
    """Wait for an asynchronous operation; its result, and None the second time.

    Raises:
        HorovodInternalError: the ranks' calls do not fit together, or a rank was lost.
    """
    with as_horovod():
        return handle.take() if isinstance(handle, _Running) else handle()


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """The place of a rank in a set.

    Raises:
        InvalidArgument: it is not in it.
    """
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise InvalidArgument(
            sentences(
                "horovod-root",
                f"an operation got root_rank={root_rank}.",
                f"it is counted among all ranks, and the process set has {ranks}.",
                "pass a rank of the process set.",
            )
        )
    return ranks.index(root_rank)


def _reduce(
    tensors: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> _Running:
    named = named_of(process_set)
    with as_horovod():
        handle = operations.all_reduce(
            named,
            list(tensors),
            name,
            op=op_name(op, average),
            prescale=prescale,
            postscale=postscale,
            in_place=in_place,
        )
    return _Running(named, handle, (lambda _: list(tensors)) if in_place else list)


def _broadcast(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool
) -> _Running:
    named, root = named_of(process_set), root_in(process_set, root_rank)
    with as_horovod():
        handle = operations.broadcast(named, tensor, root, name, in_place=in_place)
    return _Running(named, handle, (lambda _: tensor) if in_place else _first)


def _sum_or_average(op: int) -> str:
    if op in (Average, Sum):
        return op_name(op)
    raise NotSupported(
        sentences(
            "horovod-reducescatter",
            f"reducescatter got op={op_name(op)}.",
            "it adds and averages alone, as Horovod's does.",
            "pass hvd.Sum or hvd.Average, or call farandole.reduce_scatter(), which knows more.",
        )
    )


def _splits(splits: Tensor | Sequence[int] | None) -> list[int] | None:
    if splits is None:
        return None
    listed: list[int] = splits.tolist() if isinstance(splits, Tensor) else list(splits)
    return listed


def _received(splits: Tensor | Sequence[int] | None, counts: list[int]) -> Tensor:
    kind = splits.dtype if isinstance(splits, Tensor) else torch.int32
    device = splits.device if isinstance(splits, Tensor) else None
    return torch.tensor(counts, dtype=kind, device=device or "cpu")
