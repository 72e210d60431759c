# SPDX-License-Identifier: Apache-2.0
"""torch's state_dict of an optimizer, taken apart and checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer

from farandole.errors import InvalidArgument, sentences
from farandole.optim.parameter_groups import Group, names_of

State = dict[str, Any]
"""Of one parameter, by torch's names; empty if it has none."""

States = list[list[State]]
"""Of each parameter of each group."""

SCALARS = frozenset({"step", "eta", "mu", "mu_product"})
"""What torch's optimizers keep once for a parameter, as a tensor of shape ()."""


def groups_of(
    saved: Sequence[Group],
    groups: Sequence[Group],
    defaults: Mapping[str, Any],
    pattern: Optimizer,
) -> list[Group]:
    """The saved groups with the parameters of ``groups``, as the class of ``pattern`` takes them.

    As torch does: the class has the last word, so that AdamW stays AdamW; keys that it does not
    know are kept. What is in neither is of ``defaults``, where torch fails in the next step.

    Raises:
        InvalidArgument: they do not fit together.
    """
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved]
    if sizes != saved_sizes:
        raise InvalidArgument(
            sentences(
                "load-groups",
                f"load_state_dict() got groups of {saved_sizes} parameters.",
                f"this optimizer has groups of {sizes}.",
                "make the optimizer with the parameters and groups that were saved, in the same "
                "order.",
            )
        )
    loaded = []
    for group, saved_group in zip(groups, saved, strict=True):
        new = deepcopy({key: value for key, value in saved_group.items() if key != "params"})
        new["params"] = group["params"]
        if "param_names" in group:
            new.setdefault("param_names", group["param_names"])
        loaded.append(new)
    pattern.__setstate__({"state": defaultdict(dict), "param_groups": loaded})
    taken = pattern.param_groups
    pattern.param_groups = []
    for new in taken:
        for key, value in defaults.items():
            new.setdefault(key, value)
    return taken


def states_of(
    state_dict: Mapping[str, Any],
    groups: Sequence[Group],
    required: Sequence[Sequence[str]],
    has_shapes_of_parameters: bool = True,
) -> States:
    """What was saved of each parameter.

    Args:
        state_dict: As torch saves it.
        groups: Those of this optimizer.
        required: Of each group, what a state that there is must have.
        has_shapes_of_parameters: Whether what it has more than once must have a parameter's shape.

    Raises:
        InvalidArgument: a state misses something or has another shape than its parameter; or it is
            of no parameter.
    """
    saved = state_dict["state"]
    ids = [list(group["params"]) for group in state_dict["param_groups"]]
    unknown = saved.keys() - set(chain.from_iterable(ids))
    if unknown:
        raise InvalidArgument(
            sentences(
                "load-unknown-parameter",
                f"load_state_dict() got a state of {sorted(map(str, unknown))}.",
                "no group has a parameter with that number.",
                "pass what state_dict() returned, unchanged.",
            )
        )
    states = [[dict(saved.get(number) or {}) for number in numbers] for numbers in ids]
    for index, group in enumerate(groups):
        for name, parameter, state in zip(
            names_of(groups, index), group["params"], states[index], strict=True
        ):
            if state:
                _check_has(name, state, required[index])
            if state and has_shapes_of_parameters:
                _check_shapes(name, parameter, state, required[index])
    return states


def _check_has(name: str, state: State, required: Sequence[str]) -> None:
    missing = [key for key in required if key not in state]
    if missing:
        raise InvalidArgument(
            sentences(
                "load-missing-state",
                f"load_state_dict() got a state of {name} without {', '.join(missing)}.",
                "this optimizer needs it to continue; the loaded state has "
                f"{', '.join(map(str, state))}.",
                "load the state of an optimizer of the same class and options.",
            )
        )


def _check_shapes(
    name: str, parameter: torch.Tensor, state: State, required: Sequence[str]
) -> None:
    shape = tuple(parameter.shape)
    for key, value in state.items():
        is_once = key in SCALARS or not isinstance(value, torch.Tensor)
        if not is_once and tuple(value.shape) != shape and (value.dim() > 0 or key in required):
            raise InvalidArgument(
                sentences(
                    "load-shape",
                    f"load_state_dict() got '{key}' of shape {tuple(value.shape)} for {name}.",
                    f"that parameter has shape {shape}.",
                    "load the state of the same model, with its parameters in the same order.",
                )
            )
