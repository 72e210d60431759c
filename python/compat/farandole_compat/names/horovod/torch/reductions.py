# SPDX-License-Identifier: Apache-2.0
"""allreduce, sparse_allreduce and reducescatter, with all their forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.errors import NotSupported, sentences
from farandole.named import differentiable, operations
from farandole.named.compression import Compressor
from farandole.named.sparse import sparse_all_reduce
from torch import Tensor

from horovod.common.exceptions import as_horovod
from horovod.common.process_sets import ProcessSet, global_process_set, named_of
from horovod.torch.compression import Compression
from horovod.torch.running import Average, Running, Sum, first_of, op_name, synchronize


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Running:
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
) -> Running:
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
) -> Running:
    """Begin to reduce a tensor."""
    running = grouped_allreduce_async(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return Running(running.named, running.handle, first_of)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Running:
    """Begin to replace a tensor by its reduction."""
    running = grouped_allreduce_async_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return Running(running.named, running.handle, lambda _: tensor)


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


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Running:
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
    return Running(named, handle, list)


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
) -> Running:
    """Begin to get this rank's rows of the reduction of a tensor."""
    running = grouped_reducescatter_async(
        [tensor], name, op, process_set, prescale_factor, postscale_factor
    )
    return Running(running.named, running.handle, first_of)


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


def _reduce(
    tensors: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Running:
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
    return Running(named, handle, (lambda _: list(tensors)) if in_place else list)


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
