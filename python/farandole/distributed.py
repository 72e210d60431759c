# SPDX-License-Identifier: Apache-2.0
"""The rank and world-size API: collectives on plain tensors by the names they have in C++."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from farandole import _C
from farandole.c10d import BACKEND
from farandole.errors import InvalidArgument, NotSupported

Group: TypeAlias = dist.ProcessGroup
Work: TypeAlias = dist.Work
ReduceOp: TypeAlias = dist.ReduceOp.RedOpType | dist.ReduceOp
ReduceOpName: TypeAlias = Literal["sum", "avg", "min", "max", "product", "band", "bor", "bxor"]

_OPS = {
    "sum": dist.ReduceOp(dist.ReduceOp.SUM),
    "avg": dist.ReduceOp(dist.ReduceOp.AVG),
    "min": dist.ReduceOp(dist.ReduceOp.MIN),
    "max": dist.ReduceOp(dist.ReduceOp.MAX),
    "product": dist.ReduceOp(dist.ReduceOp.PRODUCT),
    "band": dist.ReduceOp(dist.ReduceOp.BAND),
    "bor": dist.ReduceOp(dist.ReduceOp.BOR),
    "bxor": dist.ReduceOp(dist.ReduceOp.BXOR),
}


def init_process_group(
    init_method: str | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    store: Store | None = None,
    timeout: timedelta | None = None,
) -> Group:
    """Make the default group, with the backend farandole for tensors on CPU and CUDA.

    It is torch.distributed's default group; if there is one already and no argument is given, that
    one is returned. Without arguments the ranks find each other through torchrun's variables;
    without those this process is rank 0 of 1, and one line on standard error says so.

    Args:
        init_method: "tcp://host:port", "file:///path" or "env://".
        rank: Of this process, with ``store`` or ``init_method``.
        world_size: How many processes there are, with ``store`` or ``init_method``.
        store: Where the processes meet, in place of ``init_method``.
        timeout: How long each collective waits for a late rank; FARANDOLE_TIMEOUT_S if None.

    Raises:
        InvalidArgument: arguments or variables are incomplete.
        TimeoutError: a rank did not come; the text names it.
    """
    plain = init_method is None and rank < 0 and world_size < 0 and store is None
    if dist.is_initialized():
        if plain:
            return default_group()
        raise InvalidArgument(
            "init_process_group() was called twice in this process.\n"
            "why: there is a default group already, and arguments ask for another.\n"
            "fix: call destroy() first, or call it without arguments to get the one that is."
        )
    if plain and _C.find_launch().launcher == "alone":
        _C.go_alone()
        store, rank, world_size = HashStore(), 0, 1
    dist.init_process_group(
        BACKEND,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        store=store,
        timeout=timeout,
    )
    return default_group()


def is_initialized() -> bool:
    """Whether there is a default group."""
    return dist.is_initialized()


def default_group() -> Group:
    """The group of all ranks.

    Raises:
        InvalidArgument: there is none yet.
    """
    group = dist.group.WORLD
    if group is None:
        raise InvalidArgument(
            "there is no default group.\n"
            "why: init_process_group() has not been called in this process, or destroy() was.\n"
            "fix: call farandole.init_process_group() first."
        )
    return group


def new_group(
    ranks: Sequence[int] | None = None, *, timeout: timedelta | None = None
) -> Group | None:
    """Make a group of some ranks of the default group; every rank of that calls it.

    Args:
        ranks: Its ranks, counted in the default group; all if None.
        timeout: As in init_process_group().

    Returns:
        The group, or None on a rank that is not in it.
    """
    default_group()
    listed = None if ranks is None else list(ranks)
    group = dist.new_group(listed, timeout=timeout, backend=BACKEND)
    return group if isinstance(group, dist.ProcessGroup) else None


def shrink_group(excluded: Sequence[int], *, group: Group | None = None) -> Group:
    """Replace ``group`` by one of its ranks that are not ``excluded``, also after a rank has died.

    Each rank that remains calls it with the same list. The old group ends; with the default group,
    which the new one replaces, all others do. The ranks meet in the store of the old group: it must
    live, as a FileStore or torchrun's does, but not the one that a dead rank 0 served.

    Raises:
        ValueError: ``excluded`` is empty, or not of ranks of the group.
        NotSupported: TORCH_DISTRIBUTED_DEBUG=DETAIL, whose groups torch cannot shrink.
        TimeoutError: another rank did not come; the text names it.
        SystemError: the store is gone.
    """
    old = group or default_group()
    if _C.ProcessGroupFarandole.of(old) not in (None, old._get_backend(torch.device("cpu"))):
        raise NotSupported(
            "shrink_group() cannot be called under TORCH_DISTRIBUTED_DEBUG=DETAIL.\n"
            "why: torch wraps the group's backend then, and not every torch can shrink that.\n"
            "fix: set TORCH_DISTRIBUTED_DEBUG=INFO, or make the smaller group with new_group()."
        )
    ours = [
        device
        for device in old._device_types
        if isinstance(old._get_backend(device), _C.ProcessGroupFarandole)
    ]
    shrunk = dist.shrink_group(list(excluded), group)
    # torch.distributed books it as gloo's, and its DDP then takes it for a ProcessGroupGloo.
    kind = dist.ProcessGroup.BackendType.CUSTOM
    backend = shrunk._get_backend(torch.device("cpu"))
    for device in ours:
        shrunk._register_backend(device, kind, backend)
    shrunk._set_default_backend(kind)
    return shrunk


def rank(group: Group | None = None) -> int:
    """The rank of this process in ``group``."""
    return _C.rank(group or default_group())


def world_size(group: Group | None = None) -> int:
    """How many ranks ``group`` has."""
    return _C.world_size(group or default_group())


def local_rank(group: Group | None = None) -> int:
    """This rank among those of ``group`` on its host."""
    return _C.local_rank(group or default_group())


def local_world_size(group: Group | None = None) -> int:
    """How many ranks of ``group`` are on this host."""
    return _C.local_world_size(group or default_group())


def all_reduce(
    tensor: torch.Tensor,
    *,
    op: ReduceOpName | ReduceOp = "sum",
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Reduce ``tensor`` in place over the ranks of ``group``; same shape and dtype on each.

    Returns:
        A Work that is done, unless ``async_op``: then call its ``wait()``.

    Raises:
        InvalidArgument: the tensor or ``op`` cannot be; nothing was sent.
        TimeoutError: a rank did not join in time; the text names it.
        PeerFailure: a rank died; the text names it.
    """
    return _C.all_reduce(tensor, _op_of(op), group or default_group(), async_op)


def reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    *,
    op: ReduceOpName | ReduceOp = "sum",
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``output`` with this rank's part of the reduction of ``input``.

    ``input`` holds world_size parts, each as large as ``output``. Returns and raises as
    all_reduce().
    """
    return _C.reduce_scatter(output, input, _op_of(op), group or default_group(), async_op)


def all_gather(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    *,
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``output``, world_size times as large as ``input``, with all inputs in rank order.

    Any dtype. Returns and raises as all_reduce().
    """
    return _C.all_gather(output, input, group or default_group(), async_op)


def broadcast(
    tensor: torch.Tensor,
    *,
    root: int = 0,
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``tensor`` with that of rank ``root`` of ``group``; any dtype.

    Returns and raises as all_reduce().
    """
    return _C.broadcast(tensor, root, group or default_group(), async_op)


def reduce(
    tensor: torch.Tensor,
    *,
    root: int = 0,
    op: ReduceOpName | ReduceOp = "sum",
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Reduce over the ranks of ``group`` into the ``tensor`` of rank ``root``; others keep theirs.

    Returns and raises as all_reduce().
    """
    return _C.reduce(tensor, root, _op_of(op), group or default_group(), async_op)


def gather(
    output: torch.Tensor | None,
    input: torch.Tensor,  # noqa: A002
    *,
    root: int = 0,
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """As all_gather() on rank ``root`` alone: ``output`` is contiguous there and None elsewhere."""
    return _C.gather(output, input, root, group or default_group(), async_op)


def scatter(
    output: torch.Tensor,
    input: torch.Tensor | None,  # noqa: A002
    *,
    root: int = 0,
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``output`` with this rank's part of root's ``input``.

    ``input`` is contiguous on rank ``root`` and None elsewhere; any dtype. Returns and raises as
    all_reduce().
    """
    return _C.scatter(output, input, root, group or default_group(), async_op)


def all_to_all(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    *,
    output_splits: Sequence[int] = (),
    input_splits: Sequence[int] = (),
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill part p of ``output`` with this rank's part of rank p's ``input``; any dtype.

    The parts are equal, or as many rows (dimension 0) as the splits say for each rank; all ranks
    give splits or none does. Returns and raises as all_reduce(); MismatchError: two ranks do not
    agree on the size of a part.
    """
    splits = list(output_splits), list(input_splits)
    return _C.all_to_all(output, input, *splits, group or default_group(), async_op)


def barrier(*, group: Group | None = None, async_op: bool = False) -> Work:
    """Return when every rank of ``group`` has entered. Returns and raises as all_reduce()."""
    return _C.barrier(group or default_group(), async_op)


def monitored_barrier(
    *,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
    group: Group | None = None,
) -> None:
    """As barrier(), with a timeout of its own: rank 0's error names who did not come in time.

    torch.distributed.monitored_barrier() refuses every backend but gloo. With this backend all late
    ranks are named, whatever ``wait_all_ranks`` is, and the group is over afterwards.

    Raises:
        TimeoutError: a rank did not come; the text names all of them.
        AbortedError: so it was on another rank.
    """
    _C.monitored_barrier(timeout, wait_all_ranks, group or default_group())


def send(
    tensor: torch.Tensor,
    destination: int,
    *,
    tag: int = 0,
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Send ``tensor``, of any dtype, to rank ``destination`` of ``group``.

    Done when ``tensor`` may be changed again. Returns and raises as all_reduce().
    """
    return _C.send(tensor, destination, tag, group or default_group(), async_op)


def recv(
    tensor: torch.Tensor,
    source: int | None = None,
    *,
    tag: int = 0,
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``tensor`` with the next message with ``tag`` from rank ``source``, or from any.

    ``tensor`` has the sender's dtype and number of elements. source_rank() tells who sent it.
    Returns and raises as all_reduce(); MismatchError: the message has another size.
    """
    return _C.recv(tensor, source, tag, group or default_group(), async_op)


def source_rank(work: Work) -> int:
    """The rank that a finished recv() got its message from, counted in its group."""
    return _C.source_rank(work)


def symmetric_empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """An uninitialized tensor in memory that all ranks of ``group`` map. Collective.

    Collectives on it, or on contiguous parts of it at one place on every rank, copy nothing in or
    out. Each rank has its own; it may be let go in any order, also after the group.

    Args:
        size: As torch.empty()'s, the same on every rank.
        dtype: The same on every rank; torch's default if None.
        group: Of backend farandole.

    Raises:
        InvalidArgument: the group has another backend, or a size is negative.
        MismatchError: the ranks ask for different sizes.
        SystemError: a rank has no memory left.
    """
    flat = [n for part in size for n in ([part] if isinstance(part, int) else part)]
    return _C.symmetric_empty(flat, dtype or torch.get_default_dtype(), group or default_group())


def abort(group: Group | None = None) -> None:
    """Fail every collective of ``group``, here and on its peers, within 100 ms."""
    _C.abort(group or default_group())


def destroy(group: Group | None = None) -> None:
    """End ``group`` on this rank, or without one the default group and all others.

    What is pending is aborted; init_process_group() may be called again.
    """
    if group is None and not dist.is_initialized():
        return
    dist.destroy_process_group(group)


def _op_of(op: ReduceOpName | ReduceOp) -> dist.ReduceOp:
    if isinstance(op, dist.ReduceOp):
        return op
    if not isinstance(op, str):
        return dist.ReduceOp(op)
    if op in _OPS:
        return _OPS[op]
    raise InvalidArgument(
        f"op is '{op}'.\n"
        "why: no reduction has that name.\n"
        f"fix: pass one of {', '.join(_OPS)}, or a torch.distributed.ReduceOp."
    )
