# SPDX-License-Identifier: Apache-2.0
"""Any element-wise optimizer of torch on this rank's shards."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from farandole import _C
from farandole.errors import Error
from farandole.optim.memory_order import part_of
from farandole.optim.parameter_groups import Group, describe, hyperparameters
from farandole.optim.state_dicts import State, States

MakeOptimizer = Callable[[list[Group]], Optimizer]

_SCALARS = frozenset({"step", "eta", "mu", "mu_product"})
"""What torch's optimizers keep once for a parameter, as a tensor of shape ()."""


class InnerUpdate:
    """What a ZeroRedundancyOptimizer does with shards that another optimizer updates."""

    def __init__(
        self, engine: _C.ShardedOptimizer, groups: Sequence[Group], make: MakeOptimizer
    ) -> None:
        """Make the inner optimizer. Local."""
        self._engine = engine
        self._make = make
        self.optimizer = self._on_shards(groups)

    def _on_shards(self, groups: Sequence[Group]) -> Optimizer:
        return self._make([self._shard_group(index, group) for index, group in enumerate(groups)])

    def _shard_group(self, index: int, group: Group) -> Group:
        return {**hyperparameters(group), "params": self._engine.shards(index)}

    def read(self, groups: Sequence[Group]) -> None:
        """Take over the present hyperparameters. Local."""
        for group, inner in zip(groups, self.optimizer.param_groups, strict=True):
            inner.update(hyperparameters(group))

    def step(self, groups: Sequence[Group], **arguments: Any) -> None:
        """Update the shards and store them on all ranks. Collective."""
        inner = self.optimizer
        name = type(inner).__qualname__
        self._engine.begin_step(describe(name, groups, list(inner.defaults)))
        try:
            inner.step(**arguments)
        except Exception as error:
            with contextlib.suppress(Error):
                self._engine.fail_step(f"{type(error).__qualname__}: {error}")
            raise
        self._engine.end_step()
        for group, inner_group in zip(groups, inner.param_groups, strict=True):
            group.update(hyperparameters(inner_group))

    def add_group(self, groups: Sequence[Group]) -> None:
        """Take over the last group. Local."""
        self.optimizer.add_param_group(self._shard_group(len(groups) - 1, groups[-1]))

    def rebuild(self, groups: Sequence[Group], process_group: dist.ProcessGroup | None) -> None:
        """Cut shards anew over the ranks of ``process_group``. Collective."""
        self._engine.begin_rebuild(process_group)
        states = self.gather(groups, -1)
        self._engine.finish_rebuild()
        self.optimizer = self._on_shards(groups)
        self.load(groups, states)

    def state_bytes(self) -> int:
        """Of this rank."""
        tensors = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
        return sum(tensor.nbytes for tensor in tensors)

    def gather(self, groups: Sequence[Group], to: int) -> States:
        """The states of whole parameters on rank ``to`` (-1: on all). Collective."""
        own = [self._outline(index) for index in range(len(groups))]
        everyone = [pickle.loads(data) for data in self._engine.all_gather(pickle.dumps(own))]
        states = []
        for index, group in enumerate(groups):
            outlines = [outline[index] for outline in reversed(everyone)]
            states.append(self._gather_group(index, group, outlines, to))
        return states

    def _outline(self, index: int) -> dict[int, State]:
        """By parameter: what its state is, with dtypes in place of what is cut into pieces."""
        outlines: dict[int, State] = {}
        shards = self.optimizer.param_groups[index]["params"]
        for piece, shard in zip(self._engine.pieces(index), shards, strict=True):
            if shard in self.optimizer.state:
                outlines[piece.parameter] = {
                    name: value.dtype if _is_cut(value, shard) else value
                    for name, value in self.optimizer.state[shard].items()
                }
        return outlines

    def _gather_group(
        self, index: int, group: Group, outlines: Sequence[dict[int, State]], to: int
    ) -> list[State]:
        merged: dict[int, State] = {}
        for outline in outlines:
            merged.update(outline)
        states = [dict(merged.get(number, {})) for number in range(len(group["params"]))]
        cut = dict.fromkeys(
            name
            for state in states
            for name, value in state.items()
            if isinstance(value, torch.dtype)
        )
        for name in cut:
            dtypes = [state.get(name) for state in states]
            whole = self._engine.gather(index, self._pieces_of(index, name, dtypes), to)
            for state, dtype, tensor in zip(states, dtypes, whole, strict=False):
                if isinstance(dtype, torch.dtype):
                    state[name] = tensor
        return states

    def _pieces_of(self, index: int, name: str, dtypes: Sequence[Any]) -> list[torch.Tensor]:
        tensors = []
        shards = self.optimizer.param_groups[index]["params"]
        for piece, shard in zip(self._engine.pieces(index), shards, strict=True):
            if isinstance(dtypes[piece.parameter], torch.dtype):
                tensors.append(self.optimizer.state[shard][name])
            else:
                tensors.append(torch.zeros_like(shard))
        return tensors

    def required(self, groups: Sequence[Group]) -> list[list[str]]:
        """What the state of a parameter of each group must have to be loaded."""
        return [[] for _ in groups]

    def load(self, groups: Sequence[Group], states: States) -> None:
        """Take this rank's part of checked states. Local."""
        packed: dict[int, State] = {}
        packed_groups = []
        count = 0
        for index, group in enumerate(groups):
            first = count
            for piece in self._engine.pieces(index):
                parameter = group["params"][piece.parameter]
                state = states[index][piece.parameter]
                if state:
                    packed[count] = {
                        name: _cut(name, value, parameter, piece) for name, value in state.items()
                    }
                count += 1
            packed_groups.append({**hyperparameters(group), "params": list(range(first, count))})
        self.optimizer.load_state_dict({"state": packed, "param_groups": packed_groups})


def _is_cut(value: object, shard: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shard.shape


def _cut(name: str, value: Any, parameter: torch.Tensor, piece: _C.Piece) -> Any:
    """A copy of this rank's part, or of what a parameter has once."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape != parameter.shape or (value.dim() == 0 and name in _SCALARS):
        return value.clone()
    return part_of(value, parameter, piece).clone()
