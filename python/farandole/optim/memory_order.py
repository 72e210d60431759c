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


def copy_part(
    value: torch.Tensor | LazyTensor, parameter: torch.Tensor, piece: _C.Piece, into: torch.Tensor
) -> None:
    """Put the elements of ``value``, of the parameter's shape, that belong to ``piece`` there."""
    if isinstance(value, LazyTensor):
        value.copy_part(parameter, piece.offset, into)
    else:
        into.copy_(_part_of(value, parameter, piece))


def new_part(
    value: torch.Tensor | LazyTensor, parameter: torch.Tensor, piece: _C.Piece
) -> torch.Tensor:
    """The same in a new tensor, on the device of the parameter."""
    part = torch.empty(piece.elements, dtype=value.dtype, device=parameter.device)
    copy_part(value, parameter, piece, part)
    return part


def _part_of(value: torch.Tensor, parameter: torch.Tensor, piece: _C.Piece) -> torch.Tensor:
    if isinstance(value, ShardedState):
        return value.part(piece)
    if parameter.is_contiguous():
        flat = value.reshape(-1)
    else:
        alike = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
        flat = alike.copy_(value).as_strided((value.numel(),), (1,))
    return flat[piece.offset : piece.offset + piece.elements]
