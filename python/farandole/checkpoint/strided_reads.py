# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors out of what is read in the order of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from farandole.checkpoint.reader import Reader

_MOST_BYTES = 64 << 20
"""That are read at once, where most of them belong to other boxes."""


def read_box(
    reader: Reader, key: str, offsets: Sequence[int], sizes: Sequence[int]
) -> torch.Tensor:
    """Elements that are next to each other in every dimension.

    What is read is all from the first to the last of them. If that is much more than the box, as
    with some columns of a large matrix, the box is cut into halves first.
    """
    entry = reader.entries[key]
    strides = list(entry.strides)
    elements = math.prod(sizes)
    if elements == 0:
        return torch.empty(list(sizes), dtype=entry.dtype)
    begin = sum(o * s for o, s in zip(offsets, strides, strict=True))
    extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if extent > 2 * elements and extent * entry.dtype.itemsize > _MOST_BYTES:
        cut = max(range(len(sizes)), key=lambda each: (sizes[each] > 1) * strides[each])
        if sizes[cut] > 1:
            return _in_halves(reader, key, list(offsets), list(sizes), cut)
    return reader.read(key, begin, extent).as_strided(list(sizes), strides)


def _in_halves(
    reader: Reader, key: str, offsets: list[int], sizes: list[int], cut: int
) -> torch.Tensor:
    whole = torch.empty(sizes, dtype=reader.entries[key].dtype)
    half = sizes[cut] // 2
    for begin, size in ((0, half), (half, sizes[cut] - half)):
        at = [o + begin if each == cut else o for each, o in enumerate(offsets)]
        part = [size if each == cut else n for each, n in enumerate(sizes)]
        whole.narrow(cut, begin, size).copy_(read_box(reader, key, at, part))
    return whole
