# SPDX-License-Identifier: Apache-2.0
"""The operations of NamedCollectives on tensors, asynchronous: each returns a Handle.

Names are those of their operation, so an all_gather may have the name of an all_reduce. What has no
name gets a number, so ranks call it in one order. Inputs are left alone unless it is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from farandole.errors import InvalidArgument, sentences
from farandole.named import request
from farandole.named.handle import Handle
from farandole.named.named_collectives import NamedCollectives
from farandole.named.request import Request


def all_reduce(
    named: NamedCollectives,
    tensors: Sequence[Tensor],
    name: str | None = None,
    *,
    op: str = "average",
    prescale: float = 1.0,
    postscale: float = 1.0,
    in_place: bool = False,
    joins: bool = False,
    wants_memory: str = "",
    will_wait: bool = False,
) -> Handle:
    """Reduce each tensor over the ranks.

    Args:
        named: Of which group.
        tensors: The same shapes and dtypes on all ranks.
        name: By which ranks match it; None: a number.
        op: "average", "sum", "min", "max", "product" or "adasum". Averages of half types are formed
            in float32; those of integers are sums in their dtype, divided and rounded toward zero.
        prescale: By which inputs are multiplied; integers in float64, rounded toward zero.
        postscale: By which results are.
        in_place: Whether results replace the inputs.
        joins: Whether the tensors, of one dtype, count as one; other ranks may cut theirs
            otherwise.
        wants_memory: How tensors are to lie in memory that all ranks share; the handle gets it if
            all ranks say the same, and can. "": none.
        will_wait: Whether the caller waits for it at once.
    """
    asked = Request(
        request.ALL_REDUCE,
        tensors,
        op,
        0,
        float(prescale),
        float(postscale),
        in_place=in_place,
        joins=joins,
        wants_memory=wants_memory,
    )
    return _submit(named, name, asked, will_wait)


def all_gather(
    named: NamedCollectives,
    tensors: Sequence[Tensor],
    name: str | None = None,
    *,
    will_wait: bool = False,
) -> Handle:
    """Join each tensor with those of the other ranks along dimension 0, which may differ."""
    return _submit(named, name, Request(request.ALL_GATHER, tensors), will_wait)


def broadcast(
    named: NamedCollectives,
    tensor: Tensor,
    root: int,
    name: str | None = None,
    *,
    in_place: bool = False,
    will_wait: bool = False,
) -> Handle:
    """The tensor of rank ``root`` of the group; with ``in_place`` it replaces ``tensor``."""
    asked = Request(request.BROADCAST, [tensor], root=root, in_place=in_place)
    return _submit(named, name, asked, will_wait)


def all_to_all(
    named: NamedCollectives,
    tensor: Tensor,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    will_wait: bool = False,
) -> Handle:
    """Send ``splits[r]`` rows to each rank r, equal parts if None.

    Raises:
        InvalidArgument: the splits are not those of the tensor's rows.
    """
    asked = Request(request.ALL_TO_ALL, [tensor])
    asked.splits = _rows_of_splits(tensor, splits, named.world_size if named.is_member else 1)
    return _submit(named, name, asked, will_wait)


def reduce_scatter(
    named: NamedCollectives,
    tensors: Sequence[Tensor],
    name: str | None = None,
    *,
    op: str = "average",
    prescale: float = 1.0,
    postscale: float = 1.0,
    will_wait: bool = False,
) -> Handle:
    """This rank's rows of the reduction of each tensor; the first ranks get one more if need be.

    As all_reduce(), with op "average" or "sum".
    """
    asked = Request(request.REDUCE_SCATTER, tensors, op, 0, float(prescale), float(postscale))
    return _submit(named, name, asked, will_wait)


def barrier(named: NamedCollectives, name: str | None = None) -> Handle:
    """Done when all ranks have called it."""
    return _submit(named, name, Request(request.BARRIER, []), will_wait=True)


def _submit(named: NamedCollectives, name: str | None, asked: Request, will_wait: bool) -> Handle:
    if name is None:
        name = named.new_name()
    return named.submit(f"{asked.operation}.{name}", asked, will_wait)


def _rows_of_splits(
    tensor: Tensor, splits: Sequence[int] | None, world_size: int
) -> tuple[int, ...]:
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits is None and rows % world_size == 0 and tensor.dim():
        return (rows // world_size,) * world_size
    given = tuple(int(count) for count in splits or ())
    if splits is None or len(given) != world_size or sum(given) != rows or min(given) < 0:
        raise InvalidArgument(
            sentences(
                "named-splits",
                f"all_to_all got the splits {list(given) if splits is not None else None} for a "
                f"tensor of {rows} rows in a group of {world_size} ranks.",
                "there is one number of rows for each rank, and they add up to those of the "
                "tensor; without splits each rank gets as many.",
                "pass such splits.",
            )
        )
    return given
