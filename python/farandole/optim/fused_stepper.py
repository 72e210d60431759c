# SPDX-License-Identifier: Apache-2.0
"""SGD, Adam, AdamW, LAMB and LARS on this rank's shards, in one pass in C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from farandole import _C
from farandole.optim.fused_rules import COUNT_STEPS, RULES
from farandole.optim.gathering import (
    HALVES,
    MASTER,
    gather,
    gather_masters,
    load_masters,
    masters_of,
    state_dtype,
)
from farandole.optim.memory_order import copy_part, shards_of
from farandole.optim.owned_state import OwnedState
from farandole.optim.parameter_groups import Group
from farandole.optim.state_dicts import State, States


class FusedStepper:
    """What a ZeroRedundancyOptimizer does with shards whose rule is in C++.

    Has the methods of InnerStepper.
    """

    def __init__(self, engine: _C.ShardedOptimizer, optimizer_class: object) -> None:
        """Take a class that is in RULES."""
        self._engine = engine
        self._rule_of = RULES[optimizer_class]
        self._counts_steps = optimizer_class in COUNT_STEPS
        self._rules: list[_C.UpdateRule] = []

    def read(self, groups: Sequence[Group]) -> None:
        """Take over the present hyperparameters. Local."""
        self._rules = [self._rule_of(group) for group in groups]

    def step(self, groups: Sequence[Group]) -> None:  # noqa: ARG002
        """Update the shards and store them on all ranks. Collective."""
        self._engine.step(self._rules)

    def prepare_group(self, groups: Sequence[Group]) -> None:
        """Make what the last group needs. Local."""

    def add_group(self, groups: Sequence[Group]) -> None:
        """Take over the last group. Local."""

    def rebuild(
        self,
        groups: Sequence[Group],  # noqa: ARG002
        process_group: dist.ProcessGroup | None,
    ) -> None:
        """Cut shards anew over the ranks of ``process_group``. Collective."""
        self._engine.begin_rebuild(process_group)
        self._engine.finish_rebuild()

    def state_bytes(self) -> int:
        """Of this rank."""
        return self._engine.state_bytes()

    def owned(self, groups: Sequence[Group]) -> Iterator[OwnedState]:
        """The state of each piece of this rank. Local."""
        self.read(groups)
        self._engine.make_state(self._rules)
        for index, group in enumerate(groups):
            steps = self._engine.steps(index)
            arrays = {
                name: self._engine.state(index, name) for name in self._rules[index].state_names
            }
            masters = masters_of(self._engine, index, group["params"])
            for i, piece in enumerate(self._engine.pieces(index)):
                if steps[piece.parameter] == 0:
                    continue
                parts = {name: array[i] for name, array in arrays.items()}
                if (master := masters[i]) is not None:
                    parts[MASTER] = master
                rest = self._counted(group, steps[piece.parameter])
                yield OwnedState(index, piece.parameter, piece, parts, rest)

    def sharded(self, groups: Sequence[Group]) -> States:
        """The state of each parameter, as ShardedState; that before the first step, too. Local."""
        self.read(groups)
        self._engine.make_state(self._rules)
        is_new = not self.is_stepped(groups)
        return [self._shard_states(index, group, is_new) for index, group in enumerate(groups)]

    def is_stepped(self, groups: Sequence[Group]) -> bool:
        """Whether any parameter has been. Local, and the same on all ranks."""
        return any(any(self._engine.steps(index)) for index in range(len(groups)))

    def _shard_states(self, index: int, group: Group, is_new: bool) -> list[State]:
        parameters = group["params"]
        arrays = {name: self._engine.state(index, name) for name in self._rules[index].state_names}
        masters = masters_of(self._engine, index, parameters)
        pieces = self._engine.pieces(index)
        states: list[State] = []
        for number, steps in enumerate(self._engine.steps(index)):
            parameter = parameters[number]
            if steps == 0 and not (is_new and parameter.requires_grad):
                states.append({})
                continue
            own = [i for i, piece in enumerate(pieces) if piece.parameter == number]
            state: State = {"step": _as_torch_counts(group, steps)} if self._counts() else {}
            for name, array in arrays.items():
                parts = [(pieces[i].offset, array[i]) for i in own]
                state[name] = shards_of(parameter, state_dtype(parameter), parts)
            if self._engine.master_weights and parameter.dtype in HALVES:
                parts = [(pieces[i].offset, each) for i in own if (each := masters[i]) is not None]
                state[MASTER] = shards_of(parameter, torch.float32, parts)
            states.append(state)
        return states

    def shown(self, groups: Sequence[Group]) -> States:
        """What can be said of each parameter's state without other ranks. Local."""
        return self.sharded(groups)

    def _counts(self) -> bool:
        return self._counts_steps or self._engine.stochastic_rounding  # which goes on from there

    def _counted(self, group: Group, steps: int) -> State:
        return {"step": _as_torch_counts(group, steps)} if self._counts() and steps > 0 else {}

    def gather(self, groups: Sequence[Group], to: int) -> States:
        """The states of whole parameters on rank ``to``, empty ones elsewhere. Collective."""
        self.read(groups)
        self._engine.make_state(self._rules)
        return [self._gather_group(index, group, to) for index, group in enumerate(groups)]

    def _gather_group(self, index: int, group: Group, to: int) -> list[State]:
        parameters = group["params"]
        steps = self._engine.steps(index)  # alike on all ranks
        states = [self._counted(group, each) for each in steps]
        dtypes = [state_dtype(p) if n > 0 else None for p, n in zip(parameters, steps, strict=True)]
        for name in self._rules[index].state_names:
            whole = gather(self._engine, index, self._engine.state(index, name), dtypes, to)
            for state, tensor in zip(states, whole, strict=False):
                if tensor is not None:
                    state[name] = tensor
        gather_masters(self._engine, index, parameters, states, to)
        return states

    def required(self, groups: Sequence[Group]) -> list[list[str]]:
        """What the state of a parameter of each group must have to be loaded."""
        rules = [self._rule_of(group) for group in groups]  # which fails for what cannot be
        if not self._counts_steps:
            return [[] for _ in groups]
        return [["step", *rule.state_names] for rule in rules]

    def load(self, groups: Sequence[Group], states: States) -> None:
        """Take this rank's part of checked states. Local."""
        self.read(groups)
        self._engine.make_state(self._rules)
        with torch.no_grad():
            for index, group in enumerate(groups):
                self._load_group(index, group["params"], states[index])

    def _load_group(
        self, index: int, parameters: Sequence[torch.Tensor], states: Sequence[State]
    ) -> None:
        names = self._rules[index].state_names
        pieces = self._engine.pieces(index)
        for name in names:
            for piece, array in zip(pieces, self._engine.state(index, name), strict=True):
                value = states[piece.parameter].get(name)
                if value is None:
                    array.zero_()
                else:
                    copy_part(value, parameters[piece.parameter], piece, array)
        load_masters(self._engine, index, parameters, states)
        has_state = [any(state.get(name) is not None for name in names) for state in states]
        self._engine.set_steps(index, [self._steps(state) for state in states], has_state)

    def _steps(self, state: State) -> int:
        if "step" in state:
            return int(state["step"])
        return int(any(value is not None for value in state.values()))


def _as_torch_counts(group: Group, step: int) -> torch.Tensor:
    """A state's "step", in the dtype that torch's optimizers give it."""
    in_float64 = torch.get_default_dtype() == torch.float64
    on_device = group.get("fused") or group.get("capturable")
    dtype = torch.float64 if in_float64 and not on_device else torch.float32
    return torch.tensor(float(step), dtype=dtype)
