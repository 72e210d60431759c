# SPDX-License-Identifier: Apache-2.0
"""allgather, broadcast and alltoall, with all their forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from farandole.errors import InvalidArgument, sentences
from farandole.named import differentiable, operations
from torch import Tensor

from horovod.common.exceptions import as_horovod
from horovod.common.process_sets import ProcessSet, global_process_set, named_of
from horovod.torch.running import Running, first_of, synchronize


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Running:
    """Begin to join tensors with those of the other ranks, together."""
    named = named_of(process_set)
    with as_horovod():
        return Running(named, operations.all_gather(named, list(tensors), name), list)


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
) -> Running:
    """Begin to join a tensor with those of the other ranks along the first dimension."""
    running = grouped_allgather_async([tensor], name, process_set)
    return Running(running.named, running.handle, first_of)


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
) -> Running:
    """Begin to get the tensor of a rank, which is counted among all ranks."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=False)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Running:
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
) -> Running:
    """Begin to send rows to each rank; its result has also how many came from each."""
    named = named_of(process_set)
    with as_horovod():
        handle = operations.all_to_all(named, tensor, _splits(splits), name)
    return Running(
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


def _broadcast(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool
) -> Running:
    named, root = named_of(process_set), root_in(process_set, root_rank)
    with as_horovod():
        handle = operations.broadcast(named, tensor, root, name, in_place=in_place)
    return Running(named, handle, (lambda _: tensor) if in_place else first_of)


def _splits(splits: Tensor | Sequence[int] | None) -> list[int] | None:
    if splits is None:
        return None
    listed: list[int] = splits.tolist() if isinstance(splits, Tensor) else list(splits)
    return listed


def _received(splits: Tensor | Sequence[int] | None, counts: list[int]) -> Tensor:
    kind = splits.dtype if isinstance(splits, Tensor) else torch.int32
    device = splits.device if isinstance(splits, Tensor) else None
    return torch.tensor(counts, dtype=kind, device=device or "cpu")
