# SPDX-License-Identifier: Apache-2.0
"""Elements in the order in which a parameter has them in memory, as pieces count them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole import _C
from farandole.optim.lazy_tensor import LazyTensor
from farandole.optim.sharded_state import ShardedState


def strides_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """Those of the elements without gaps."""
    return torch.empty_like(parameter, device="meta").stride()


def shards_of(
    parameter: torch.Tensor, dtype: torch.dtype, pieces: Sequence[tuple[int, torch.Tensor]]
) -> ShardedState:
    """What is cut as a parameter is, of the pieces of this rank."""
    return ShardedState(parameter.shape, strides_of(parameter), dtype, parameter.device, pieces)


def part_of(
    value: torch.Tensor | LazyTensor, parameter: torch.Tensor, piece: _C.Piece
) -> torch.Tensor:
    """The elements of ``value``, of the parameter's shape, that belong to ``piece``; 1-D."""
    if isinstance(value, ShardedState):
        return value.part(piece)
    if isinstance(value, LazyTensor):
        return value.part(parameter, piece.offset, piece.elements)
    if parameter.is_contiguous():
        flat = value.reshape(-1)
    else:
        alike = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
        flat = alike.copy_(value).as_strided((value.numel(),), (1,))
    return flat[piece.offset : piece.offset + piece.elements]
