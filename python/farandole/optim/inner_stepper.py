# SPDX-License-Identifier: Apache-2.0
"""Any optimizer of torch on this rank's shards."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from farandole import _C
from farandole.errors import Error
from farandole.optim.full_state import (
    OnDevice,
    gather_whole,
    moved,
    outlines_of,
    whole_shards,
)
from farandole.optim.gathering import (
    HALVES,
    MASTER,
    gather,
    gather_masters,
    load_masters,
    masters_of,
)
from farandole.optim.lazy_tensor import LazyTensor, materialized
from farandole.optim.memory_order import new_part, shards_of
from farandole.optim.owned_state import OwnedState
from farandole.optim.parameter_groups import Group, describe, hyperparameters
from farandole.optim.state_dicts import SCALARS, State, States

MakeOptimizer = Callable[[list[Group]], Optimizer]


class InnerStepper:
    """What a ZeroRedundancyOptimizer does with shards that another optimizer updates."""

    def __init__(
        self, engine: _C.ShardedOptimizer, groups: Sequence[Group], make: MakeOptimizer
    ) -> None:
        """Make the inner optimizer. Local."""
        self._engine = engine
        self._make = make
        self._description = ""
        self._is_behind = False  # the engine may have shards that the inner optimizer has not
        self._prepared: Optimizer | None = None  # has the last group too
        self.optimizer = self._on_shards(groups)
        self._device = _device_of(groups)  # where the state is, but for what the CPU counts

    def _on_shards(self, groups: Sequence[Group]) -> Optimizer:
        return self._make([self._shard_group(index, group) for index, group in enumerate(groups)])

    def _shard_group(self, index: int, group: Group) -> Group:
        return {**hyperparameters(group), "params": self._engine.shards(index)}

    def _take_new_shards(self, fresh: Optimizer) -> None:
        """Of parameters that came, or were frozen until now; with the state that they begin with.

        Only the constructor of Adagrad makes that.
        """
        for inner, new in zip(self.optimizer.param_groups, fresh.param_groups, strict=True):
            inner["params"] = new["params"]
        for shard, state in fresh.state.items():
            self.optimizer.state.setdefault(shard, state)

    def _catch_up(self, groups: Sequence[Group]) -> None:
        """Take shards that came, in this step or in one in which that failed. Local."""
        for index, inner in enumerate(self.optimizer.param_groups):
            if len(inner["params"]) != len(self._engine.pieces(index)):
                self._take_new_shards(self._on_shards(groups))
                break
        self._is_behind = False

    def read(self, groups: Sequence[Group]) -> None:
        """Take over the present hyperparameters. Local."""
        for group, inner in zip(groups, self.optimizer.param_groups, strict=True):
            inner.update(hyperparameters(group))
        name = type(self.optimizer).__qualname__
        self._description = describe(name, groups, list(self.optimizer.defaults))

    def step(self, groups: Sequence[Group], **arguments: Any) -> None:
        """Update the shards and store them on all ranks. Collective."""
        inner = self.optimizer
        if self._engine.begin_step(self._description):
            self._is_behind = True
        if self._engine.was_left_out:
            return
        try:
            if self._is_behind:
                self._catch_up(groups)
            inner.step(**arguments)
        except Exception as error:
            with contextlib.suppress(Error):
                self._engine.fail_step(f"{type(error).__qualname__}: {error}")
            raise
        self._engine.end_step()
        for group, inner_group in zip(groups, inner.param_groups, strict=True):
            group.update(hyperparameters(inner_group))

    def prepare_group(self, groups: Sequence[Group]) -> None:
        """Make what the last group needs; if it fails, all is as before. Local."""
        self._prepared = self._on_shards(groups)

    def add_group(self, groups: Sequence[Group]) -> None:
        """Take over the last group, which is prepared. Local."""
        assert self._prepared is not None
        self.optimizer.add_param_group({**hyperparameters(groups[-1]), "params": []})
        self._take_new_shards(self._prepared)
        self._prepared = None

    def rebuild(self, groups: Sequence[Group], process_group: dist.ProcessGroup | None) -> None:
        """Cut shards anew over the ranks of ``process_group``. Collective."""
        self._engine.begin_rebuild(process_group)
        states = self.gather(groups, -1)
        made: list[Optimizer] = []
        has_moved = _device_of(groups) != self._device

        def make() -> None:
            made.append(self._on_shards(groups))
            for shard, state in self._cut(made[0], groups, states, has_moved):
                if state:
                    made[0].state[shard] = state

        self._engine.finish_rebuild(make)
        self.optimizer = made[0]
        self._device = _device_of(groups)

    def state_bytes(self) -> int:
        """Of this rank."""
        tensors = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
        return self._engine.state_bytes() + sum(tensor.nbytes for tensor in tensors)

    def owned(self, groups: Sequence[Group]) -> Iterator[OwnedState]:
        """The state of each piece of this rank. Local."""
        self._catch_up(groups)
        for index, group in enumerate(groups):
            shards = self.optimizer.param_groups[index]["params"]
            masters = masters_of(self._engine, index, group["params"])
            pieces = self._engine.pieces(index)
            for piece, shard, master in zip(pieces, shards, masters, strict=True):
                parts: dict[str, torch.Tensor] = {}
                rest: State = {}
                for name, value in self.optimizer.state.get(shard, {}).items():
                    is_part = not self._engine.has_whole_parameters and _is_cut(value, shard)
                    (parts if is_part else rest)[name] = value
                if master is not None and (parts or rest):
                    parts[MASTER] = master
                if parts or rest:
                    yield OwnedState(index, piece.parameter, piece, parts, rest)

    def sharded(self, groups: Sequence[Group]) -> States:
        """The state of each parameter, with ShardedState for what is large. Collective."""
        self._catch_up(groups)
        if self._engine.has_whole_parameters:
            states = self._sharded_whole(groups)
        else:
            states = self._sharded_pieces(groups)
        for index, group in enumerate(groups):
            self._add_shards_of_masters(index, group["params"], states[index])
        return states

    def is_stepped(self, groups: Sequence[Group]) -> bool:
        """Whether any parameter has been. Local, and the same on all ranks."""
        return any(any(self._engine.steps(index)) for index in range(len(groups)))

    def _sharded_pieces(self, groups: Sequence[Group]) -> States:
        own = [self._outline(index) for index in range(len(groups))]
        states: States = []
        for index, (group, merged) in enumerate(zip(groups, self._merged(own), strict=True)):
            shards = self.optimizer.param_groups[index]["params"]
            pieces = list(zip(self._engine.pieces(index), shards, strict=True))
            states.append([])
            for number, parameter in enumerate(group["params"]):
                state = merged.get(number, {})
                states[-1].append(state)
                for name, value in state.items():
                    if isinstance(value, torch.dtype):
                        parts = [
                            (piece.offset, part)
                            for piece, shard in pieces
                            if piece.parameter == number
                            and (part := self._own_state(shard, name)) is not None
                        ]
                        state[name] = shards_of(parameter, value, parts)
                    else:
                        state[name] = _here(value, parameter, -1)
        return states

    def _sharded_whole(self, groups: Sequence[Group]) -> States:
        own = self._own_whole()
        states: States = []
        for group, mine, merged in zip(groups, own, self._merged(outlines_of(own)), strict=True):
            devices = [parameter.device for parameter in group["params"]]
            states.append(
                [
                    whole_shards(merged.get(number, {}), mine.get(number), device)
                    for number, device in enumerate(devices)
                ]
            )
        return states

    def _merged(self, own: Sequence[Mapping[int, State]]) -> list[dict[int, State]]:
        """By group and parameter: what the first rank that has it says. Collective."""
        everyone = [pickle.loads(data) for data in self._engine.all_gather(pickle.dumps(own))]
        merged: list[dict[int, State]] = [{} for _ in own]
        for outlines in reversed(everyone):
            for index, states in enumerate(outlines):
                merged[index].update(states)
        return merged

    def _add_shards_of_masters(
        self, index: int, parameters: Sequence[torch.Tensor], states: Sequence[State]
    ) -> None:
        if not self._engine.master_weights:
            return
        pieces = self._engine.pieces(index)
        masters = list(zip(pieces, masters_of(self._engine, index, parameters), strict=True))
        for number, (parameter, state) in enumerate(zip(parameters, states, strict=True)):
            if state and parameter.dtype in HALVES:
                parts = [
                    (piece.offset, master)
                    for piece, master in masters
                    if piece.parameter == number and master is not None
                ]
                state[MASTER] = shards_of(parameter, torch.float32, parts)

    def shown(self, groups: Sequence[Group]) -> States:
        """What can be said of each parameter's state without other ranks. Local."""
        states: States = [[{} for _ in group["params"]] for group in groups]
        for each in self.owned(groups):
            parameter = groups[each.group]["params"][each.parameter]
            state: State = {
                name: shards_of(parameter, part.dtype, [(each.piece.offset, part)])
                for name, part in each.parts.items()
            }
            states[each.group][each.parameter] = {**each.rest, **state}
        return states

    def gather(self, groups: Sequence[Group], to: int) -> States:
        """The states of whole parameters on rank ``to`` (-1: on all). Collective."""
        self._catch_up(groups)
        if self._engine.has_whole_parameters:
            return self._gather_whole(groups, to)
        own = [self._outline(index) for index in range(len(groups))]
        states = []
        for index, (group, merged) in enumerate(zip(groups, self._merged(own), strict=True)):
            in_order = [
                {name: _here(value, p, to) for name, value in merged.get(number, {}).items()}
                for number, p in enumerate(group["params"])
            ]
            self._fill(index, in_order, to)
            gather_masters(self._engine, index, group["params"], in_order, to)
            states.append(in_order)
        return states

    def _gather_whole(self, groups: Sequence[Group], to: int) -> States:
        """The same where no state is cut. Collective."""
        states = gather_whole(self._engine, groups, self._own_whole(), to)
        for index, group in enumerate(groups):
            gather_masters(self._engine, index, group["params"], states[index], to)
        return states

    def _own_whole(self) -> list[dict[int, State]]:
        """By group and parameter: the states of this rank, where no state is cut."""
        own = []
        for index, inner in enumerate(self.optimizer.param_groups):
            pieces = zip(self._engine.pieces(index), inner["params"], strict=True)
            own.append(
                {
                    piece.parameter: self.optimizer.state[shard]
                    for piece, shard in pieces
                    if shard in self.optimizer.state
                }
            )
        return own

    def _outline(self, index: int) -> dict[int, State]:
        """By parameter: what its state is, with dtypes in place of what is cut into pieces."""
        outlines: dict[int, State] = {}
        shards = self.optimizer.param_groups[index]["params"]
        for piece, shard in zip(self._engine.pieces(index), shards, strict=True):
            if shard in self.optimizer.state:
                outlines[piece.parameter] = {
                    name: value.dtype if _is_cut(value, shard) else _once(value)
                    for name, value in self.optimizer.state[shard].items()
                }
        return outlines

    def _fill(self, index: int, states: Sequence[State], to: int) -> None:
        """Put whole tensors where dtypes are. Collective."""
        shards = self.optimizer.param_groups[index]["params"]
        names = dict.fromkeys(name for state in states for name in state)
        for name in names:
            dtypes = [_dtype_in(state, name) for state in states]
            tensors = [
                self._own_state(shard, name) if dtypes[piece.parameter] is not None else None
                for piece, shard in zip(self._engine.pieces(index), shards, strict=True)
            ]
            whole = gather(self._engine, index, tensors, dtypes, to)
            for state, tensor in zip(states, whole, strict=False):
                if tensor is not None:
                    state[name] = tensor

    def _own_state(self, shard: torch.Tensor, name: str) -> torch.Tensor | None:
        """None where a step failed before it made what the others have."""
        value = self.optimizer.state.get(shard, {}).get(name)
        return value if _is_cut(value, shard) else None

    def required(self, groups: Sequence[Group]) -> list[list[str]]:
        """What the state of a parameter of each group must have to be loaded."""
        return [[] for _ in groups]

    def load(self, groups: Sequence[Group], states: States) -> None:
        """Take this rank's part of checked states. Local."""
        self._catch_up(groups)
        cut = self._cut(self.optimizer, groups, states)
        packed = {i: state for i, (_, state) in enumerate(cut) if state}
        packed_groups: list[Group] = []
        count = 0
        for inner, group in zip(self.optimizer.param_groups, groups, strict=True):
            numbers = list(range(count, count + len(inner["params"])))
            packed_groups.append({**hyperparameters(group), "params": numbers})
            count += len(numbers)
        self.optimizer.load_state_dict({"state": packed, "param_groups": packed_groups})
        with torch.no_grad():
            for index, group in enumerate(groups):
                load_masters(self._engine, index, group["params"], states[index])
                self._engine.set_steps(index, [int(bool(state)) for state in states[index]])

    def _cut(
        self,
        optimizer: Optimizer,
        groups: Sequence[Group],
        states: States,
        has_moved: bool = False,
    ) -> Iterator[tuple[torch.Tensor, State]]:
        """Each shard of this rank with a copy of its part of the states.

        ``has_moved``: whether the parameters are on another device than the states were made for.
        """
        for index, group in enumerate(groups):
            shards = optimizer.param_groups[index]["params"]
            for piece, shard in zip(self._engine.pieces(index), shards, strict=True):
                parameter = group["params"][piece.parameter]
                state = states[index][piece.parameter]
                own = {name: value for name, value in state.items() if name != MASTER}
                if self._engine.has_whole_parameters:
                    yield (
                        shard,
                        {
                            name: moved(value, shard.device)
                            if has_moved and name not in SCALARS
                            else deepcopy(materialized(value))
                            for name, value in own.items()
                        },
                    )
                    continue
                yield (
                    shard,
                    {
                        name: _cut_value(name, value, parameter, piece)
                        for name, value in own.items()
                    },
                )


def _once(value: object) -> object:
    """What a parameter has once, as it travels to other ranks."""
    return OnDevice.replaced(value) if isinstance(value, torch.Tensor) else value


def _here(value: Any, parameter: torch.Tensor, to: int) -> Any:
    """The same where it has arrived."""
    return value.here(parameter.device, to) if isinstance(value, OnDevice) else value


def _device_of(groups: Sequence[Group]) -> torch.device:
    """Of all parameters."""
    device: torch.device = next(p for group in groups for p in group["params"]).device
    return device


def _is_cut(value: object, shard: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shard.shape


def _dtype_in(state: State, name: str) -> torch.dtype | None:
    value = state.get(name)
    return value if isinstance(value, torch.dtype) else None


def _cut_value(name: str, value: Any, parameter: torch.Tensor, piece: _C.Piece) -> Any:
    """A copy of this rank's part, or of what a parameter has once."""
    if isinstance(value, LazyTensor):
        return new_part(value, parameter, piece)
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape != parameter.shape or (value.dim() == 0 and name in SCALARS):
        return value.clone()
    return new_part(value, parameter, piece)
