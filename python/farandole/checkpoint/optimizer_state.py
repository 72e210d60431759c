# SPDX-License-Identifier: Apache-2.0
"""States of optimizers, sharded or not, in a checkpoint.

Each parameter has a tree, by the names of torch's optimizers: what has the shape of the parameter
is a tensor of the checkpoint, "<parameter>/<name>"; the rest is in the JSON text. So a state does
not depend on who has had it: a sharded optimizer of any number of ranks, or an unsharded one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from farandole import _C
from farandole.checkpoint import tree
from farandole.checkpoint.names import is_torchs_zero, names_in_group
from farandole.checkpoint.reader import Entry, Reader
from farandole.checkpoint.saved_tensor import SavedTensor
from farandole.errors import CheckpointError, InvalidArgument, sentences
from farandole.optim import ZeroRedundancyOptimizer
from farandole.optim.class_marks import marks, needed_state
from farandole.optim.element_wise import is_element_wise
from farandole.optim.gathering import MASTER
from farandole.optim.lazy_tensor import materialized
from farandole.optim.parameter_groups import Group, hyperparameters
from farandole.optim.state_dicts import SCALARS, State, States


def _check_kind(optimizer: Optimizer) -> None:
    if is_torchs_zero(optimizer):
        raise InvalidArgument(
            sentences(
                "checkpoint-torch-zero",
                "a checkpoint got torch's own ZeroRedundancyOptimizer.",
                "each of its ranks keeps the state of its own parameters to itself.",
                "use farandole.ZeroRedundancyOptimizer, which takes the same arguments.",
            )
        )


def _class_of(optimizer: Optimizer) -> type[Optimizer]:
    """That updates the parameters."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        return optimizer.wrapped_class
    return type(optimizer)


class OptimizerSaver:
    """Adds the state of an optimizer to the slices of this rank."""

    def __init__(
        self, prefix: str, optimizer: Optimizer, known: Mapping[int, str], slices: _C.SliceList
    ) -> None:
        _check_kind(optimizer)
        self._prefix = prefix
        self._optimizer = optimizer
        self._slices = slices
        groups = optimizer.param_groups
        self._names = [names_in_group(groups, index, known) for index in range(len(groups))]

    def save(self) -> dict[str, Any]:
        """Add the slices, and return the JSON of the rest. Collective if it is sharded."""
        if isinstance(self._optimizer, ZeroRedundancyOptimizer):
            states = self._sharded(self._optimizer)
        else:
            states = self._unsharded()
        groups = [
            {
                "params": names,
                "hyperparameters": tree.encode(hyperparameters(group), f"{self._prefix}group"),
            }
            for names, group in zip(self._names, self._optimizer.param_groups, strict=True)
        ]
        of = _class_of(self._optimizer)
        return {"class": of.__qualname__, "groups": groups, "states": states}

    def _key(self, parameter: str) -> str:
        return f"{self._prefix}{parameter}"

    def _unsharded(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for names, group in zip(self._names, self._optimizer.param_groups, strict=True):
            for name, parameter in zip(names, group["params"], strict=True):
                state = self._optimizer.state.get(parameter)
                if state:
                    states[name] = tree.encode(dict(state), self._key(name), self._keep_shared)
        return states

    def _keep_shared(self, at: str, tensor: torch.Tensor) -> str:
        self._slices.add_shared(at, tensor)
        return at

    def _sharded(self, optimizer: ZeroRedundancyOptimizer) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for each in optimizer.owned_states():
            name = self._names[each.group][each.parameter]
            parameter = optimizer.param_groups[each.group]["params"][each.parameter]
            keep = self._keep_own if optimizer.partition == "parameters" else None
            own[name] = tree.encode(dict(each.rest), self._key(name), keep)
            for part, tensor in each.parts.items():
                key = f"{self._key(name)}/{part}"
                self._slices.add_part(key, parameter, each.piece.offset, tensor)
                own[name][part] = {"!tensor": key}
        states: dict[str, Any] = {}
        for of_rank in reversed(optimizer.gather_objects(own)):
            states.update(of_rank)
        return states

    def _keep_own(self, at: str, tensor: torch.Tensor) -> str:
        self._slices.add_own(at, tensor)
        return at


class OptimizerLoader:
    """Loads the state of an optimizer: first all that may fail, then the change."""

    def __init__(
        self,
        prefix: str,
        optimizer: Optimizer,
        known: Mapping[int, str],
        reader: Reader,
        entries: Mapping[str, Entry],
        saved: Mapping[str, Any],
    ) -> None:
        _check_kind(optimizer)
        self._prefix = prefix
        self._optimizer = optimizer
        self._reader = reader
        self._entries = entries
        groups = optimizer.param_groups
        self._names = [names_in_group(groups, index, known) for index in range(len(groups))]
        self._saved = saved
        self._groups: list[Group] = []
        self._state_dict: StateDict = {}

    def prepare(self) -> None:
        """Read what this rank needs. Local.

        Raises:
            CheckpointError: what was saved does not fit, or cannot be read.
        """
        self._check_class()
        self._groups = self._fitting_groups()
        if self._saved["class"] is None:
            self._check_hyperparameters()
        states = [
            [
                self._state(name, parameter, group)
                for name, parameter in zip(names, present["params"], strict=True)
            ]
            for names, present, group in zip(
                self._names, self._optimizer.param_groups, self._groups, strict=True
            )
        ]
        if not isinstance(self._optimizer, ZeroRedundancyOptimizer):
            self._materialize(states)
        self._state_dict = self._packed(states)
        if isinstance(self._optimizer, ZeroRedundancyOptimizer):
            self._check_taken(self._optimizer)

    def _materialize(self, all_states: States) -> None:
        for group, states in zip(self._optimizer.param_groups, all_states, strict=True):
            for parameter, state in zip(group["params"], states, strict=True):
                for name, value in state.items():
                    state[name] = materialized(value)
                if not state:
                    state.update(self._initial_state(parameter))

    def _initial_state(self, parameter: torch.Tensor) -> State:
        """What the constructor of some optimizers makes (Adagrad), until a step has used it."""
        state = self._optimizer.state.get(parameter, {})
        is_initial = "step" in state and int(state["step"]) == 0
        return dict(state) if is_initial else {}

    def _packed(self, all_states: States) -> StateDict:
        """For load_state_dict()."""
        numbers, packed = 0, {}
        groups = []
        for present, group, states in zip(
            self._optimizer.param_groups, self._groups, all_states, strict=True
        ):
            own = list(range(numbers, numbers + len(states)))
            # What C++ has not, and what a scheduler keeps there, stays.
            groups.append({**hyperparameters(present), **group, "params": own})
            packed.update({n: s for n, s in zip(own, states, strict=True) if s})
            numbers += len(states)
        return {"state": packed, "param_groups": groups}

    def _check_taken(self, optimizer: ZeroRedundancyOptimizer) -> None:
        """Let what refuses a state do so now."""
        try:
            optimizer.check_state_dict(self._state_dict)
        except InvalidArgument as met:
            raise _mismatch(
                "an optimizer's state that cannot be taken",
                f"it met: {met}",
                "make the optimizer of the class and with the options that were saved.",
            ) from met

    def change(self) -> None:
        """Take it over. Local, or collective as load_state_dict() of a sharded optimizer."""
        self._optimizer.load_state_dict(self._state_dict)

    def _check_class(self) -> None:
        own = _class_of(self._optimizer).__qualname__
        if self._saved["class"] not in (None, own):  # None: it was not saved
            raise _mismatch(
                f"the state of an optimizer {self._saved['class']}",
                f"the one to load into is {own}",
                "make the optimizer of the class that was saved.",
            )

    def _check_hyperparameters(self) -> None:
        """What the class of an optimizer is known by, where its name was not saved."""
        for group, present in zip(self._groups, self._optimizer.param_groups, strict=True):
            for name, value in self._optimizer.defaults.items():
                is_mark = name in marks() or not (value is None or isinstance(value, bool))
                is_other = name == "decoupled_weight_decay" and group.get(name, value) != value
                if (name not in group and is_mark) or is_other:
                    raise _mismatch(
                        f"an optimizer whose {name!r} is {group.get(name, 'not there')}",
                        f"that of the one to load into is {value}",
                        "make the optimizer of the class that was saved.",
                    )
            known = {*self._optimizer.defaults, *present}
            if left_over := [name for name in group if name in marks() and name not in known]:
                raise _mismatch(
                    f"an optimizer whose {left_over[0]!r} is {group[left_over[0]]}",
                    f"{_class_of(self._optimizer).__qualname__}, into which it is loaded, has "
                    "no such hyperparameter",
                    "make the optimizer of the class that was saved.",
                )

    def _check_has_needed(self, name: str, state: State, group: Group) -> None:
        """Of the state of a parameter that has one, whose class was not saved."""
        of = _class_of(self._optimizer)
        missing = [each for each in needed_state(of, group) if each not in state]
        if missing:
            raise _mismatch(
                f"a state of {name} without {missing[0]!r}",
                f"{of.__qualname__}, into which it is loaded, needs it; the state has: "
                f"{', '.join(state)}",
                "make the optimizer of the class that was saved.",
            )

    def _fitting_groups(self) -> list[Group]:
        """The saved hyperparameters of each present group, whatever the order of the groups."""
        saved_of = {name: group for group in self._saved["groups"] for name in group["params"]}
        fitting = []
        for index, names in enumerate(self._names):
            missing = [name for name in names if name not in saved_of]
            if missing:
                raise _mismatch(
                    f"no optimizer state of {missing[0]}" + _and_others(missing),
                    f"group {index} of the optimizer has it; parameters are found by name",
                    "load it with the model whose optimizer was saved, and pass the model too, "
                    "which knows the names.",
                )
            found = [saved_of[name] for name in names]
            if any(each is not found[0] for each in found):
                other = next(
                    n for n, each in zip(names, found, strict=True) if each is not found[0]
                )
                raise _mismatch(
                    f"{names[0]} and {other} in different groups of the optimizer",
                    f"group {index} has both now, and has only one set of hyperparameters",
                    "divide the parameters into the groups that were saved; their order may "
                    "differ.",
                )
            values = tree.decode(found[0]["hyperparameters"], _no_tensor) if found else {}
            fitting.append(values)
        return fitting

    def _state(self, name: str, parameter: torch.Tensor, group: Group) -> State:
        encoded = self._saved["states"].get(name)
        if not encoded:
            return {}
        state: State = tree.decode(encoded, self._saved_tensor)
        if not self._keeps_masters():
            state.pop(MASTER, None)
        if self._saved["class"] is None:
            self._check_has_needed(name, state, group)
        if is_element_wise(_class_of(self._optimizer)):
            self._check_step(name, state.get("step", 0))
        for key, value in state.items():
            self._check_shape(name, key, value, parameter)
        return state

    def _check_step(self, name: str, step: Any) -> None:
        """What would fail when it is taken over: a NaN, say."""
        is_one = isinstance(step, torch.Tensor) and step.numel() == 1
        if not (is_one or isinstance(step, int | float)) or not 0 <= float(step) < 2**63:
            raise _mismatch(
                f"a state of {name} whose 'step' is {step}",
                "it must be the number of steps",
                "load another checkpoint, or restore this one from a copy.",
            )

    def _saved_tensor(self, key: str) -> SavedTensor:
        if key not in self._entries:
            raise _mismatch(
                f"no tensor '{key}', which its index names",
                "its files are not those that were saved",
                "load another checkpoint, or restore this one from a copy.",
            )
        return SavedTensor(self._reader, key, self._entries[key])

    def _keeps_masters(self) -> bool:
        optimizer = self._optimizer
        return isinstance(optimizer, ZeroRedundancyOptimizer) and optimizer.has_master_weights

    def _check_shape(self, name: str, key: str, value: Any, parameter: torch.Tensor) -> None:
        is_array = isinstance(value, SavedTensor | torch.Tensor) and key not in SCALARS
        if not is_array or value.shape == parameter.shape:
            return
        if _may_have_other_shapes(self._optimizer):
            return
        raise _mismatch(
            f"'{key}' of {name} with the shape {tuple(value.shape)}",
            f"the parameter has the shape {tuple(parameter.shape)}",
            "load it with the model that was saved.",
        )


def _may_have_other_shapes(optimizer: Optimizer) -> bool:
    if isinstance(optimizer, ZeroRedundancyOptimizer) and optimizer.partition == "elements":
        return False
    return not is_element_wise(_class_of(optimizer))


def _no_tensor(key: str) -> Any:
    raise _mismatch(
        f"a hyperparameter in the tensor '{key}'",
        "hyperparameters are in the text of the index",
        "load a checkpoint that save_checkpoint() has written.",
    )


def _and_others(names: Sequence[str]) -> str:
    return f" and of {len(names) - 1} more parameters" if len(names) > 1 else ""


def _mismatch(has: str, why: str, fix: str) -> CheckpointError:
    return CheckpointError(
        sentences("checkpoint-other-optimizer", f"the checkpoint has {has}.", f"{why}.", fix)
    )
