# SPDX-License-Identifier: Apache-2.0
"""States of whole parameters, each of which one rank has, brought to others."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farandole import _C
from farandole.optim.parameter_groups import Group
from farandole.optim.state_dicts import State, States

_MOST_INSIDE = 256
"""Elements of a tensor that travels within the outline of its state."""


@dataclass(frozen=True)
class OnDevice:
    """In an outline: a tensor of an accelerator, of which each rank has another one."""

    value: torch.Tensor

    @staticmethod
    def replaced(tensor: torch.Tensor) -> torch.Tensor | OnDevice:
        """The tensor itself if it is on the CPU, and a copy else."""
        tensor = tensor.detach()
        return tensor.clone() if tensor.device.type == "cpu" else OnDevice(tensor.cpu())


@dataclass(frozen=True)
class _Outside:
    """In an outline: a tensor that travels by itself."""

    shape: torch.Size
    dtype: torch.dtype
    is_on_device: bool


def gather_whole(
    engine: _C.ShardedOptimizer,
    groups: Sequence[Group],
    own: Sequence[Mapping[int, State]],
    to: int,
) -> States:
    """Bring the states of all ranks together on rank ``to``, or on all if it is -1. Collective.

    States may have tensors of any shapes, in lists and dictionaries too, and what pickle takes.

    Args:
        engine: Whose parameters they are of.
        groups: Of all parameters.
        own: Of each group, by parameter: the states that this rank has.
        to: Who gets the result, by shard_rank.

    Returns:
        By group and parameter; empty states on other ranks.
    """
    outlines = [
        {number: _replaced(state, _outside) for number, state in states.items()} for states in own
    ]
    everyone = [pickle.loads(data) for data in engine.all_gather(pickle.dumps(outlines))]
    is_receiver = to in (-1, engine.shard_rank)
    whole: States = [[{} for _ in group["params"]] for group in groups]
    for owner, of_groups in enumerate(everyone):
        for index, states in enumerate(of_groups):
            for number, outline in states.items():
                device = groups[index]["params"][number].device
                mine = own[index][number] if owner == engine.shard_rank else None
                state = _travelled(engine, owner, outline, mine, device)
                if is_receiver:
                    whole[index][number] = state
    return whole


def _travelled(
    engine: _C.ShardedOptimizer,
    owner: int,
    outline: State,
    own: State | None,
    device: torch.device,
) -> State:
    """The state of an outline, from the rank that has it. Collective."""
    sent: list[torch.Tensor] = []
    if own is not None:
        _replaced(own, lambda tensor: sent.append(tensor) if _is_outside(tensor) else None)
    at_hand = iter(sent)

    def bring(value: object) -> object:
        if isinstance(value, OnDevice):
            return value.value.to(device)
        if not isinstance(value, _Outside):
            return value
        if own is None:
            tensor = torch.empty(value.shape, dtype=value.dtype, device=device)
        else:
            tensor = next(at_hand).detach().to(device, copy=True).contiguous()
        engine.broadcast(tensor.reshape(-1).view(torch.uint8), owner)
        return tensor if value.is_on_device else tensor.cpu()

    state: State = _replaced(outline, bring, (_Outside, OnDevice))
    return state


def _is_outside(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.numel() > _MOST_INSIDE


def _outside(tensor: torch.Tensor) -> object:
    if not _is_outside(tensor):
        return OnDevice.replaced(tensor)  # pickle takes the whole storage of a view
    return _Outside(tensor.shape, tensor.dtype, tensor.device.type != "cpu")


def on_cpu(state: State) -> State:
    """The same with all tensors on the CPU."""
    moved: State = _replaced(state, lambda tensor: tensor.cpu())
    return moved


def _replaced(value: Any, replace: Callable[[Any], object], kind: Any = torch.Tensor) -> Any:
    """The same with what ``replace`` makes of each object of classes, in a fixed order."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, dict):
        return {key: _replaced(each, replace, kind) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(each, replace, kind) for each in value)
    return value
