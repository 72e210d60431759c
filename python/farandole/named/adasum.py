# SPDX-License-Identifier: Apache-2.0
"""Adasum, a sum that counts once what the ranks' gradients have in common (arXiv:2006.02924)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from farandole import _C

_TAG = 0x41646173  # of its messages


def is_possible(world_size: int) -> bool:
    """Whether the ranks pair up in each round: their number is a power of two."""
    return world_size & (world_size - 1) == 0


def adasum_(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Replace a tensor of floating-point numbers by the Adasum of the ranks'. Collective.

    a + b becomes (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b: the sum where they are orthogonal, the
    average where they are equal. In round k a rank does so with rank XOR 2^k, in float32 or wider;
    the lower rank's is a on both, so all ranks end with the same bits. For P ranks and S bytes each
    rank sends S log2 P bytes.
    """
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()
    other = torch.empty_like(wide)
    rank, distance = group.rank(), 1
    while distance < group.size():
        peer = rank ^ distance
        sending = _C.send(wide, peer, _TAG, group, True)
        _C.recv(other, peer, _TAG, group, False)
        sending.wait()
        wide = _pair(wide, other) if rank < peer else _pair(other, wide)
        distance *= 2
    tensor.copy_(wide)


def _pair(a: Tensor, b: Tensor) -> Tensor:
    flat_a, flat_b = a.flatten(), b.flatten()
    dot = torch.dot(flat_a, flat_b)
    return a * _weight(dot, torch.dot(flat_a, flat_a)) + b * _weight(dot, torch.dot(flat_b, flat_b))


def _weight(dot: Tensor, square: Tensor) -> Tensor:
    return torch.where(square == 0, torch.ones_like(square), 1 - dot / (2 * square))
