# SPDX-License-Identifier: Apache-2.0
"""What LAMB and LARS have in common: a step in C++ over whole parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from farandole import _C
from farandole.optim.gathering import HALVES
from farandole.optim.parameter_groups import Group


class LayerWiseOptimizer(Optimizer):
    """An optimizer that scales each parameter's step by norms over that whole parameter."""

    counts_steps: ClassVar[bool]
    """Whether ``state[p]`` has a "step"."""

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        """Check the hyperparameters, which the rule does."""
        self.rule(defaults)
        super().__init__(params, defaults)

    @staticmethod
    @abstractmethod
    def rule(group: Group) -> _C.UpdateRule:
        """The formula with the hyperparameters of a group."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update each parameter that has a gradient.

        Args:
            closure: Evaluates the model again and returns the loss.

        Raises:
            NotSupported: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                self._update(group)
        return loss

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take what an optimizer of this class has saved; state of half parameters as float32."""
        saved: list[StateDict] = []

        def keep(_: Optimizer, given: StateDict) -> None:  # after the program's own
            saved.append(given)

        def restore(_: Optimizer) -> None:  # before those
            self._take_unrounded(saved[0])

        hooks = [
            self.register_load_state_dict_pre_hook(keep),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _take_unrounded(self, saved: StateDict) -> None:
        """Take once more what torch has cast to the dtype of half parameters."""
        for group, saved_group in zip(self.param_groups, saved["param_groups"], strict=True):
            for parameter, number in zip(group["params"], saved_group["params"], strict=True):
                if parameter.dtype not in HALVES:
                    continue
                for name, value in saved["state"].get(number, {}).items():
                    if name != "step" and isinstance(value, torch.Tensor):
                        wide = value.to(parameter.device, torch.float32, copy=True)
                        self.state[parameter][name] = wide

    def _update(self, group: Group) -> None:
        rule = self.rule(group)
        parameters = [p for p in group["params"] if p.grad is not None]
        steps = [self._prepare(p, rule) for p in parameters]
        states = [[self.state[p][name] for name in rule.state_names] for p in parameters]
        _C.update_parameters(rule, parameters, [p.grad for p in parameters], states, steps)
        if self.counts_steps:
            for p in parameters:
                self.state[p]["step"] += 1

    def _prepare(self, parameter: torch.Tensor, rule: _C.UpdateRule) -> int:
        """Makes the state that is not there yet; which step of the parameter this is, from 1."""
        state: dict[str, Any] = self.state[parameter]
        is_new = not state
        if self.counts_steps:
            state.setdefault("step", torch.zeros((), dtype=torch.float32))
        dtype = torch.float32 if parameter.dtype in HALVES else parameter.dtype
        for name in rule.state_names:
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=dtype)
            state[name] = state[name].to(dtype)  # the parameter may have got another
        if self.counts_steps:
            return int(state["step"]) + 1
        return 1 if is_new else 2  # all that a rule without a count asks is whether state is new
