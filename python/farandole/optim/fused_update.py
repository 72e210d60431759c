# SPDX-License-Identifier: Apache-2.0
"""SGD, Adam, AdamW, LAMB and LARS on this rank's shards, in one pass in C++."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from farandole import _C
from farandole.optim.fused_rules import COUNT_STEPS, RULES
from farandole.optim.memory_order import part_of
from farandole.optim.parameter_groups import Group
from farandole.optim.state_dicts import State, States

MASTER = "master_parameter"
"""In the state of a half parameter: its value in float32, which is what is updated."""

_HALVES = (torch.float16, torch.bfloat16)


class FusedUpdate:
    """What a ZeroRedundancyOptimizer does with shards whose rule is in C++.

    Has the methods of InnerUpdate.
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

    def gather(self, groups: Sequence[Group], to: int) -> States:
        """The states of whole parameters on rank ``to``, empty ones elsewhere. Collective."""
        self.read(groups)
        self._engine.make_state(self._rules)
        return [self._gather_group(index, group, to) for index, group in enumerate(groups)]

    def _gather_group(self, index: int, group: Group, to: int) -> list[State]:
        states: list[State] = [{} for _ in group["params"]]
        steps = self._engine.steps(index)  # alike on all ranks
        if not any(steps):
            return states
        for name in [*self._rules[index].state_names, MASTER]:
            if name == MASTER and not any(p.dtype in _HALVES for p in group["params"]):
                continue
            whole = self._engine.gather(index, self._engine.state(index, name), to)
            for state, step, parameter, tensor in zip(
                states, steps, group["params"], whole, strict=False
            ):
                if step > 0 and (name != MASTER or parameter.dtype in _HALVES):
                    if self._counts_steps and not state:
                        state["step"] = _as_torch_counts(group, step)
                    state[name] = tensor
        return states

    def required(self, groups: Sequence[Group]) -> list[list[str]]:
        """What the state of a parameter of each group must have to be loaded."""
        if not self._counts_steps:
            return [[] for _ in groups]
        return [["step", *self._rule_of(group).state_names] for group in groups]

    @torch.no_grad()
    def load(self, groups: Sequence[Group], states: States) -> None:
        """Take this rank's part of checked states. Local."""
        self.read(groups)
        self._engine.make_state(self._rules)
        for index, group in enumerate(groups):
            names = self._rules[index].state_names
            for name in names:
                self._load_array(index, group, states[index], name)
            if any(p.dtype in _HALVES for p in group["params"]):
                self._load_array(index, group, states[index], MASTER)
            self._engine.set_steps(index, [self._steps(state, names) for state in states[index]])

    def _load_array(self, index: int, group: Group, states: Sequence[State], name: str) -> None:
        pieces = self._engine.pieces(index)
        for piece, array in zip(pieces, self._engine.state(index, name), strict=True):
            parameter = group["params"][piece.parameter]
            value = states[piece.parameter].get(name)
            if value is not None:
                array.copy_(part_of(value, parameter, piece))
            elif name != MASTER:
                array.zero_()
            elif parameter.dtype in _HALVES:
                array.copy_(part_of(parameter, parameter, piece))

    def _steps(self, state: State, names: Sequence[str]) -> int:
        if self._counts_steps:
            return int(state["step"]) if state else 0
        return int(any(state.get(name) is not None for name in names))


def _as_torch_counts(group: Group, step: int) -> torch.Tensor:
    """A state's "step", in the dtype that torch's optimizers give it."""
    in_float64 = torch.get_default_dtype() == torch.float64
    on_device = group.get("fused") or group.get("capturable")
    dtype = torch.float64 if in_float64 and not on_device else torch.float32
    return torch.tensor(float(step), dtype=dtype)
