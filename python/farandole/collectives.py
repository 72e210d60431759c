# SPDX-License-Identifier: Apache-2.0
"""Collectives on plain tensors by the names they have in C++; torch's arguments are taken too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from farandole import _C, arguments
from farandole.arguments import Tensors, Timeout
from farandole.called import collective

Group: TypeAlias = dist.ProcessGroup
Work: TypeAlias = dist.Work
ReduceOp: TypeAlias = dist.ReduceOp.RedOpType | dist.ReduceOp
ReduceOpName: TypeAlias = Literal["sum", "avg", "min", "max", "product", "band", "bor", "bxor"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _also_named(
    **names: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Let a function take torch's names (of the keywords) beside ours (of the values)."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> _Result:
            for theirs, ours in names.items():
                if theirs not in kwargs:
                    continue
                if ours in kwargs:
                    raise arguments.both(function.__name__, theirs, ours, "the same")
                kwargs[ours] = kwargs.pop(theirs)
            return function(*args, **kwargs)

        return cast("Callable[_Parameters, _Result]", call)

    return decorate


def all_reduce(
    tensor: torch.Tensor,
    op: ReduceOpName | ReduceOp = "sum",
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Reduce ``tensor`` in place over the ranks of ``group``; same shape and dtype on each.

    Returns:
        A Work that is done, unless ``async_op``: then call its ``wait()``.

    Raises:
        InvalidArgument: an argument cannot be; nothing was sent.
        TimeoutError: a rank did not join in time; the text names it.
        PeerFailure: a rank died; the text names it.
    """
    return _C.all_reduce(
        arguments.tensor_of("all_reduce", "tensor", tensor),
        arguments.op_of("all_reduce", op),
        arguments.group_of("all_reduce", group),
        bool(async_op),
    )


@_also_named(input_list="input")
def reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor | Tensors,  # noqa: A002
    op: ReduceOpName | ReduceOp = "sum",
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``output`` with this rank's part of the reduction of ``input``.

    ``input`` holds world_size parts, each as large as ``output``: one tensor or a list. Returns and
    raises as all_reduce().
    """
    name = "reduce_scatter"
    arguments.tensor_of(name, "output", output)
    reduction, group = arguments.op_of(name, op), arguments.group_of(name, group)
    if not arguments.is_tensors(input):
        source = arguments.tensor_of(name, "input", input)
        return _C.reduce_scatter(output, source, reduction, group, bool(async_op))
    parts = arguments.tensors_of(name, "input", input, group.size())
    arguments.filled(name, [output])
    options = dist.ReduceScatterOptions()
    options.reduceOp, options.asyncOp = reduction, bool(async_op)
    return _finish(group.reduce_scatter([output], [list(parts)], options), async_op)


@_also_named(tensor_list="output", output_tensor="output", tensor="input", input_tensor="input")
def all_gather(
    output: torch.Tensor | Tensors,
    input: torch.Tensor,  # noqa: A002
    group: Group | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``output``, world_size times as large as ``input``, with all inputs in rank order.

    ``output`` is one tensor or a list with one for each rank. Any dtype. Returns and raises as
    all_reduce().
    """
    name = "all_gather"
    arguments.tensor_of(name, "input", input)
    group = arguments.group_of(name, group)
    if not arguments.is_tensors(output):
        target = arguments.tensor_of(name, "output", output)
        return _C.all_gather(target, input, group, bool(async_op))
    parts = arguments.tensors_of(name, "output", output, group.size())
    arguments.filled(name, parts)
    options = AllgatherOptions()
    options.asyncOp = bool(async_op)
    return _finish(group.allgather([list(parts)], [input], options), async_op)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    root: int | None = None,
) -> Work:
    """Fill ``tensor`` with that of rank ``root`` of ``group``; any dtype.

    The root is rank 0 of ``group``, or what one of these says: ``root`` and ``group_src`` count in
    ``group``, ``src`` in the default group. Returns and raises as all_reduce().
    """
    name = "broadcast"
    arguments.tensor_of(name, "tensor", tensor)
    group = arguments.group_of(name, group)
    source = arguments.peer_of(name, group, name="src", globally=src, in_group=group_src, ours=root)
    return _C.broadcast(tensor, source or 0, group, bool(async_op))


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: ReduceOpName | ReduceOp = "sum",
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    root: int | None = None,
) -> Work:
    """Reduce over the ranks of ``group`` into the ``tensor`` of the root; others keep theirs.

    The root as in broadcast(), with ``dst`` and ``group_dst``. Returns and raises as all_reduce().
    """
    name = "reduce"
    arguments.tensor_of(name, "tensor", tensor)
    reduction, group = arguments.op_of(name, op), arguments.group_of(name, group)
    target = arguments.peer_of(name, group, name="dst", globally=dst, in_group=group_dst, ours=root)
    return _C.reduce(tensor, target or 0, reduction, group, bool(async_op))


@_also_named(gather_list="input", tensor="output")
def gather(
    output: torch.Tensor | None,
    input: torch.Tensor | Tensors | None = None,  # noqa: A002
    dst: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    root: int | None = None,
) -> Work:
    """As all_gather() on the root alone: ``output`` is contiguous there and None elsewhere.

    Or as torch's ``gather(tensor, gather_list)``, with the input first, then a list of outputs on
    the root and None elsewhere. The root as in reduce().
    """
    name = "gather"
    group = arguments.group_of(name, group)
    target = (
        arguments.peer_of(name, group, name="dst", globally=dst, in_group=group_dst, ours=root) or 0
    )
    if isinstance(input, torch.Tensor):
        if output is not None:
            arguments.tensor_of(name, "output", output)
        return _C.gather(output, input, target, group, bool(async_op))
    tensor = arguments.tensor_of(name, "tensor", output)
    parts: list[list[torch.Tensor]] = []
    if input is not None:
        is_root = target == group.rank()
        parts = [
            list(
                arguments.tensors_of(name, "gather_list", input, group.size() if is_root else None)
            )
        ]
        arguments.filled(name, parts[0])
    options = dist.GatherOptions()
    options.rootRank, options.asyncOp = target, bool(async_op)
    return _finish(group.gather(parts, [tensor], options), async_op)


@_also_named(scatter_list="input", tensor="output")
def scatter(
    output: torch.Tensor,
    input: torch.Tensor | Tensors | None = None,  # noqa: A002
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    root: int | None = None,
) -> Work:
    """Fill ``output`` with this rank's part of the root's ``input``.

    ``input`` is contiguous on the root, or a list with one tensor for each rank, and None
    elsewhere; any dtype. The root as in broadcast(). Returns and raises as all_reduce().
    """
    name = "scatter"
    arguments.tensor_of(name, "output", output)
    group = arguments.group_of(name, group)
    source = (
        arguments.peer_of(name, group, name="src", globally=src, in_group=group_src, ours=root) or 0
    )
    if not arguments.is_tensors(input):
        flat = None if input is None else arguments.tensor_of(name, "input", input)
        return _C.scatter(output, flat, source, group, bool(async_op))
    count = group.size() if source == group.rank() else None
    parts = arguments.tensors_of(name, "input", input, count)
    arguments.filled(name, [output])
    options = dist.ScatterOptions()
    options.rootRank, options.asyncOp = source, bool(async_op)
    return _finish(group.scatter([output], [list(parts)] if parts else [], options), async_op)


@_also_named(
    output_tensor_list="output",
    input_tensor_list="input",
    output_split_sizes="output_splits",
    input_split_sizes="input_splits",
)
def all_to_all(
    output: torch.Tensor | Tensors,
    input: torch.Tensor | Tensors,  # noqa: A002
    group: Group | None = None,
    async_op: bool = False,
    *,
    output_splits: Sequence[int] | None = (),
    input_splits: Sequence[int] | None = (),
) -> Work:
    """Fill part p of ``output`` with this rank's part of rank p's ``input``; any dtype.

    The parts are the tensors of two lists, or equal parts of two tensors, or as many rows
    (dimension 0) of these as the splits say for each rank; all ranks give splits or none does.
    Returns and raises as all_reduce(); MismatchError: two ranks do not agree on the size of a part.
    """
    name = "all_to_all"
    group = arguments.group_of(name, group)
    splits = (
        arguments.ints_of(name, "output_splits", output_splits or ()),
        arguments.ints_of(name, "input_splits", input_splits or ()),
    )
    if not arguments.is_tensors(output) and not arguments.is_tensors(input):
        target = arguments.tensor_of(name, "output", output)
        source = arguments.tensor_of(name, "input", input)
        return _C.all_to_all(target, source, *splits, group, bool(async_op))
    targets = arguments.tensors_of(name, "output", output, group.size())
    sources = arguments.tensors_of(name, "input", input, group.size())
    arguments.filled(name, targets)
    if splits != ([], []):
        raise arguments.both(name, "lists", "splits", "the sizes of the parts")
    options = dist.AllToAllOptions()
    options.asyncOp = bool(async_op)
    return _finish(group.alltoall(list(targets), list(sources), options), async_op)


def barrier(group: Group | None = None, async_op: bool = False, device_ids: object = None) -> Work:
    """Return when every rank of ``group`` has entered. Returns and raises as all_reduce().

    ``device_ids`` is torch's, and without effect.
    """
    del device_ids
    return _C.barrier(arguments.group_of("barrier", group), bool(async_op))


@collective
def monitored_barrier(
    group: Group | None = None,
    timeout: Timeout | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """As barrier(), with a timeout of its own: rank 0's error names who did not arrive in time.

    torch.distributed.monitored_barrier() refuses every backend but gloo. With this backend all late
    ranks are named, whatever ``wait_all_ranks`` is, and the group is over afterwards.

    Raises:
        TimeoutError: a rank did not arrive; the text names all of them.
        AbortedError: so it was on another rank.
    """
    name = "monitored_barrier"
    limit = arguments.timeout_of(name, timeout)
    _C.monitored_barrier(limit, bool(wait_all_ranks), arguments.group_of(name, group))


def send(
    tensor: torch.Tensor,
    destination: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    dst: int | None = None,
    async_op: bool = False,
) -> Work:
    """Send ``tensor``, of any dtype, to rank ``destination`` of ``group``.

    The other names of it: ``group_dst``, and ``dst``, which counts in the default group. Done when
    ``tensor`` may be changed again. Returns and raises as all_reduce().
    """
    arguments.tensor_of("send", "tensor", tensor)
    group = arguments.group_of("send", group)
    peer = arguments.peer_of(
        "send",
        group,
        name="dst",
        globally=dst,
        in_group=group_dst,
        ours=destination,
        our_name="destination",
    )
    if peer is None:
        raise arguments.wrong("send", "destination", None, "a rank of the group")
    return _C.send(tensor, peer, arguments.int_of("send", "tag", tag), group, bool(async_op))


def recv(
    tensor: torch.Tensor,
    source: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    src: int | None = None,
    async_op: bool = False,
) -> Work:
    """Fill ``tensor`` with the next message with ``tag`` from rank ``source``, or from any.

    The other names of ``source``: ``group_src``, and ``src``, which counts in the default group.
    ``tensor`` has the sender's dtype and number of elements. source_rank() tells who sent it.
    Returns and raises as all_reduce(); MismatchError: the message has another size.
    """
    arguments.tensor_of("recv", "tensor", tensor)
    group = arguments.group_of("recv", group)
    peer = arguments.peer_of(
        "recv",
        group,
        name="src",
        globally=src,
        in_group=group_src,
        ours=source,
        our_name="source",
    )
    return _C.recv(tensor, peer, arguments.int_of("recv", "tag", tag), group, bool(async_op))


def source_rank(work: Work) -> int:
    """The rank that a finished recv() got its message from, counted in its group."""
    if not isinstance(work, dist.Work):
        raise arguments.wrong("source_rank", "work", work, "a torch.distributed.Work")
    return _C.source_rank(work)


def _finish(work: Work, async_op: bool) -> Work:
    if not async_op:
        work.wait()
    return work


@collective
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
    name = "symmetric_empty"
    flat = [
        number
        for part in size
        for number in arguments.ints_of(
            name, "size", part if isinstance(part, Sequence) else [part]
        )
    ]
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise arguments.wrong(name, "dtype", dtype, "a torch.dtype or None")
    chosen = dtype or torch.get_default_dtype()
    sizes = arguments.ints_of(name, "size", flat)
    return _C.symmetric_empty(sizes, chosen, arguments.group_of(name, group))
