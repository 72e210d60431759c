# SPDX-License-Identifier: Apache-2.0
"""What a rank asks for under a name, and whether the ranks' requests fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from farandole.named import operands

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
BROADCAST = "broadcast"
ALL_TO_ALL = "all_to_all"
REDUCE_SCATTER = "reduce_scatter"
BARRIER = "barrier"

# Operations whose tensors may have another first dimension on each rank.
_UNEVEN = (ALL_GATHER, ALL_TO_ALL)


class Signature(NamedTuple):
    """All that ranks must know of each other's request to run it."""

    operation: str
    op: str
    """A reduction: "average", "sum", "min", "max", "product" or "adasum"; "" of a move."""
    root: int
    """Of a broadcast, counted in the group."""
    prescale: float
    postscale: float
    device: str
    """The type of the device of all tensors."""
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    splits: tuple[int, ...]
    """Of an all_to_all: rows for each rank."""
    wants_memory: str = ""
    """Of an all_reduce: how the rank would lay tensors out in memory that ranks share; "" if it
    wants none. May differ."""

    @classmethod
    def of_json(cls, fields: list[Any]) -> Signature:
        """What json made of one."""
        *plain, dtypes, shapes, splits, wants_memory = fields
        lists = (tuple(dtypes), tuple(map(tuple, shapes)), tuple(splits))
        return cls._make([*plain, *lists, wants_memory])


@dataclass(eq=False)
class Request:
    """One operation on one tensor, or on several that are reduced together."""

    operation: str
    inputs: Sequence[Tensor]
    op: str = ""
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    in_place: bool = False
    splits: tuple[int, ...] = ()
    joins: bool = False
    """Whether all tensors, of one dtype, count as one; other ranks may cut theirs otherwise."""
    wants_memory: str = ""
    """How tensors are to lie in memory that all ranks share, which the handle gets if all ranks say
    the same; "": it is to get none."""
    stream: torch.Stream | None = None
    """Of an accelerator: that of the thread that asked; submit() notes it."""

    def __post_init__(self) -> None:
        """Raises what operands.check() does."""
        operands.check(self.operation, self.op, self.inputs, in_place=self.in_place)

    def resolve(self) -> list[tuple[Tensor, Tensor]]:
        """Take memory for views that are to be filled, and are conjugated or negated; both."""
        if not self.in_place or not any(each.is_conj() or each.is_neg() for each in self.inputs):
            return []
        views = [each.detach() for each in self.inputs]
        self.inputs = [each.resolve_conj().resolve_neg() for each in views]
        pairs = zip(views, self.inputs, strict=True)
        return [(view, memory) for view, memory in pairs if view is not memory]

    def note_stream(self) -> None:
        """Take the caller's stream: another thread may run the operation."""
        if self.inputs and self.inputs[0].device.type != "cpu":
            self.stream = torch.accelerator.current_stream(self.inputs[0].device)

    def signature(self) -> Signature:
        """What the other ranks are told."""
        inputs = self.inputs
        dtypes = tuple([_name_of(tensor.dtype) for tensor in inputs])
        shapes: tuple[tuple[int, ...], ...] = tuple([tensor.shape for tensor in inputs])
        if self.joins:
            dtypes, shapes = dtypes[:1], ((sum([tensor.numel() for tensor in inputs]),),)
        return Signature(
            self.operation,
            self.op,
            self.root,
            self.prescale,
            self.postscale,
            inputs[0].device.type if inputs else "cpu",
            dtypes,
            shapes,
            self.splits,
            self.wants_memory,
        )


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype)


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a signature's name for it."""
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype


def conflict_of(signatures: Sequence[Signature | None]) -> str:
    """Why these requests of the ranks cannot run together, a clause; "" if they can.

    None stands for a rank that has joined.
    """
    given = [(rank, each) for rank, each in enumerate(signatures) if each is not None]
    first_rank, first = given[0]
    has_zero = first.operation == BARRIER or first.op in ("sum", "average")
    if len(given) < len(signatures) and (first.operation == REDUCE_SCATTER or not has_zero):
        joined = [rank for rank, each in enumerate(signatures) if each is None]
        what = first.op if first.operation == ALL_REDUCE else first.operation
        return f"ranks {joined} have joined, and {what} has no zero that they could add"
    if first.operation in (*_UNEVEN, REDUCE_SCATTER) and any(not shape for shape in first.shapes):
        return f"{first.operation} works on the first dimension, and a tensor has none"
    for rank, other in given[1:]:
        if other == first:
            continue
        for field, ours, theirs in zip(
            Signature._fields, _compared(first), _compared(other), strict=True
        ):
            if ours != theirs:
                return f"rank {first_rank} has the {field} {ours}, rank {rank} {theirs}"
    return ""


def _compared(signature: Signature) -> Signature:
    """A signature without what may differ between ranks."""
    alike = signature._replace(wants_memory="")
    if signature.operation in _UNEVEN:
        rows: Any = tuple(("any", *shape[1:]) for shape in signature.shapes)
        alike = alike._replace(shapes=rows, splits=())
    return alike
