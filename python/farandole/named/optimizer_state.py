# SPDX-License-Identifier: Apache-2.0
"""Gives all ranks the state of one rank's optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farandole import arguments
from farandole.named import operations
from farandole.named.named_collectives import NamedCollectives
from farandole.named.objects import broadcast_object


class _Place:
    """Where a tensor was in a state."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.device = tensor.device.type


def broadcast_optimizer_state(
    named: NamedCollectives, optimizer: torch.optim.Optimizer, root: int
) -> None:
    """Give ``optimizer`` the state and the options that it has on rank ``root``. Collective.

    Other ranks need not have a state. Tensors travel as they are, the rest is pickled.

    Raises:
        InvalidArgument: it is no optimizer, or this rank is not in the group.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise arguments.wrong(
            "broadcast_optimizer_state", "optimizer", optimizer, "a torch.optim.Optimizer"
        )
    is_root = named.is_member and named.rank == root
    tensors: list[Tensor] = []
    state = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    state, places = broadcast_object(named, (state, [_Place(each) for each in tensors]), root)
    if not is_root:
        tensors = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in places]
    handles = [operations.broadcast(named, each, root, in_place=True) for each in tensors]
    for handle in handles:
        named.wait(handle)
    if not is_root:
        optimizer.load_state_dict(_with_tensors(state, tensors))


def _without_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Number(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_without_tensors(each, tensors) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _with_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Number):
        return tensors[value]
    if isinstance(value, dict):
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_with_tensors(each, tensors) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


class _Number(int):
    """Stands for a tensor."""
