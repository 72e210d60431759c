# SPDX-License-Identifier: Apache-2.0
"""Elements in the order in which a parameter has them in memory, as pieces count them."""

from __future__ import annotations

import torch

from farandole import _C


def part_of(value: torch.Tensor, parameter: torch.Tensor, piece: _C.Piece) -> torch.Tensor:
    """The elements of ``value``, of the parameter's shape, that belong to ``piece``; 1-D."""
    if parameter.is_contiguous():
        flat = value.reshape(-1)
    else:
        alike = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
        flat = alike.copy_(value).as_strided((value.numel(),), (1,))
    return flat[piece.offset : piece.offset + piece.elements]
