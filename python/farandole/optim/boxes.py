# SPDX-License-Identifier: Apache-2.0
"""Intervals of a tensor's memory as boxes, which torch.distributed.checkpoint knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Box:
    """Elements of a tensor that are next to each other in every dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    begin: int
    """Of its elements in the order of memory; all of them follow one after the other."""
    order: tuple[int, ...]
    """The dimensions, the outermost in memory first."""

    @property
    def elements(self) -> int:
        """How many it has."""
        return math.prod(self.sizes)

    def view(self, flat: torch.Tensor, offset: int) -> torch.Tensor:
        """The box in its shape, of a flat part of the memory, which begins at ``offset``."""
        begin = self.begin - offset
        part = flat[begin : begin + self.elements].view([self.sizes[each] for each in self.order])
        back = [self.order.index(each) for each in range(len(self.order))]
        return part.permute(back)


def boxes_of(shape: Sequence[int], strides: Sequence[int], begin: int, end: int) -> list[Box]:
    """The boxes that the elements from ``begin`` to ``end`` of a tensor without gaps consist of.

    At most 2 * dimensions - 1: the rest of a row, whole rows, the start of a row, and the same for
    each dimension further out.
    """
    order = tuple(sorted(range(len(shape)), key=lambda each: (-strides[each], each)))
    sizes = [shape[each] for each in order]
    found = []
    for offsets, extents, at in _in_order(sizes, begin, end):
        back = [order.index(each) for each in range(len(shape))]
        found.append(
            Box(
                tuple(offsets[each] for each in back),
                tuple(extents[each] for each in back),
                at,
                order,
            )
        )
    return found


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Those of a tensor whose last dimension is the innermost."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return strides[::-1]


_Found = tuple[list[int], list[int], int]


def _in_order(sizes: Sequence[int], begin: int, end: int) -> list[_Found]:
    """Offsets, sizes and first element of each box, the outermost dimension being the first."""
    if begin >= end:
        return []
    if not sizes:
        return [([], [], begin)]
    row = math.prod(sizes[1:])
    first, last = begin // row, end // row  # rows; the last one is not whole
    if first == last or (first + 1 == last and begin % row and not end % row):
        inner = _in_order(sizes[1:], begin - first * row, end - first * row)
        return [([first, *o], [1, *e], first * row + at) for o, e, at in inner]
    found: list[_Found] = []
    if begin % row:
        found += _in_order(sizes, begin, (first + 1) * row)
        first += 1
    if first < last:
        inner_sizes = list(sizes[1:])
        found.append(
            ([first, *[0 for _ in inner_sizes]], [last - first, *inner_sizes], first * row)
        )
    if end % row:
        found += _in_order(sizes, last * row, end)
    return found
