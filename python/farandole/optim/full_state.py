# SPDX-License-Identifier: Apache-2.0
"""States of whole parameters, each of which one rank has, brought to others."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from farandole import _C
from farandole.errors import StepError, sentences
from farandole.optim.boxes import contiguous_strides
from farandole.optim.parameter_groups import Group
from farandole.optim.sharded_state import ShardedState
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

    def here(self, device: torch.device, to: int) -> torch.Tensor:
        """The tensor on a device; on the CPU, if it is brought to one rank ``to``."""
        return self.value.to(device) if to < 0 else self.value


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

    On rank ``to`` they are on the CPU. States may have tensors of any shapes, in lists and
    dictionaries too, and what pickle takes.

    Args:
        engine: Whose parameters they are of.
        groups: Of all parameters.
        own: Of each group, by parameter: the states that this rank has.
        to: Who gets the result, by shard_rank.

    Returns:
        By group and parameter; empty states on other ranks.

    Raises:
        StepError: another rank met an exception, such as one for lack of memory.
    """
    everyone = [pickle.loads(data) for data in engine.all_gather(pickle.dumps(outlines_of(own)))]
    whole: States = [[{} for _ in group["params"]] for group in groups]
    keep_last = _nothing
    for owner, of_groups in enumerate(everyone):
        for index, states in enumerate(of_groups):
            for number, outline in states.items():
                device = groups[index]["params"][number].device
                mine = own[index][number] if owner == engine.shard_rank else None
                travel = _Travel(outline, mine, device, to)
                _together(engine, to, keep_last, travel.prepare)
                travel.go(engine, owner)
                keep_last = _nothing
                if to in (-1, engine.shard_rank):
                    keep_last = partial(travel.keep, whole[index][number])
    _together(engine, to, keep_last)
    return whole


def outlines_of(own: Sequence[Mapping[int, State]]) -> list[dict[int, State]]:
    """The states without large tensors, as they travel to other ranks."""
    return [
        {number: _replaced(state, _outside) for number, state in states.items()} for states in own
    ]


def whole_shards(outline: State, own: State | None, device: torch.device) -> State:
    """A state with ShardedState for large tensors: all elements on the rank that has them."""

    def shard(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_outside(tensor):
            return tensor
        tensor = tensor.detach()
        flat = tensor.contiguous().view(-1)
        strides = contiguous_strides(tensor.shape)
        return ShardedState(tensor.shape, strides, tensor.dtype, tensor.device, [(0, flat)])

    def bring(value: _Outside | OnDevice) -> torch.Tensor:
        if isinstance(value, OnDevice):
            return value.here(device, -1)
        at = device if value.is_on_device else torch.device("cpu")
        return ShardedState(value.shape, contiguous_strides(value.shape), value.dtype, at, [])

    replaced: State = (
        _replaced(outline, bring, (_Outside, OnDevice)) if own is None else _replaced(own, shard)
    )
    return replaced


def _nothing() -> None:
    pass


def _together(engine: _C.ShardedOptimizer, to: int, *actions: Callable[[], None]) -> None:
    """Do what may fail on one rank, as without memory: then all ranks raise. Collective."""
    error: Exception | None = None
    try:
        for action in actions:
            action()
    except Exception as own:
        error = own
    text = "" if error is None else f"{type(error).__qualname__}: {error}"
    texts = [pickle.loads(data) for data in engine.all_gather(pickle.dumps(text))]
    if error is not None:
        raise error
    for rank, met in enumerate(texts):
        if met:
            call = "rebuild()" if to < 0 else "consolidate_state_dict()"
            failure = StepError(
                sentences(
                    "change-failed",
                    f"{call} failed on rank {rank} of group '{engine.group.group_name}'.",
                    f"it met: {met}",
                    "fix the cause on that rank and call it again on every rank; nothing was "
                    "changed.",
                )
            )
            failure.ranks = (rank,)
            raise failure


class _Travel:
    """Of the state of one parameter, from the rank that has it."""

    def __init__(self, outline: State, own: State | None, device: torch.device, to: int) -> None:
        """Take the rank's ``own`` state, if it is that which has it."""
        self._outline = outline
        self._own = own
        self._device = device
        self._to = to
        self._tensors: list[torch.Tensor] = []

    def prepare(self) -> None:
        """Make all the memory that it needs. Local."""
        if self._own is None:
            _replaced(self._outline, self._make_space, _Outside)
        else:
            _replaced(self._own, self._send)

    def _make_space(self, value: _Outside) -> None:
        self._tensors.append(torch.empty(value.shape, dtype=value.dtype, device=self._device))

    def _send(self, tensor: torch.Tensor) -> None:
        if _is_outside(tensor):
            self._tensors.append(tensor.detach().to(self._device, copy=True).contiguous())

    def go(self, engine: _C.ShardedOptimizer, owner: int) -> None:
        """Collective."""
        for tensor in self._tensors:
            engine.broadcast(tensor.reshape(-1).view(torch.uint8), owner)

    def keep(self, state: State) -> None:
        """Put what has arrived into ``state``: on the CPU, if it is brought to one rank. Local."""
        arrived = iter(self._tensors)

        def bring(value: _Outside | OnDevice) -> torch.Tensor:
            if isinstance(value, OnDevice):
                return value.here(self._device, self._to)
            tensor = next(arrived)
            return tensor if value.is_on_device and self._to < 0 else tensor.cpu()

        state.update(_replaced(self._outline, bring, (_Outside, OnDevice)))
        self._tensors = []


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


def moved(value: Any, device: torch.device) -> Any:
    """A copy of a state, or of a part of it, with all tensors on a device."""
    return _replaced(value, lambda tensor: tensor.to(device, copy=True))


def _replaced(value: Any, replace: Callable[[Any], object], kind: Any = torch.Tensor) -> Any:
    """The same with what ``replace`` makes of each object of classes, in a fixed order."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, dict):
        return {key: _replaced(each, replace, kind) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(each, replace, kind) for each in value)
    return value
