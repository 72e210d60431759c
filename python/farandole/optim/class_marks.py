# SPDX-License-Identifier: Apache-2.0
"""What a saved optimizer's class is known by, where its name was not saved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

from torch import optim

from farandole.optim.lamb import LAMB
from farandole.optim.lars import LARS
from farandole.optim.parameter_groups import Group

_SWITCHES = frozenset({"amsgrad", "bias_correction", "centered", "nesterov"})
"""Options of true or false that tell classes apart; torch's classes got others over the years."""


def _adam(group: Group) -> tuple[str, ...]:
    largest = ("max_exp_avg_sq",) if group.get("amsgrad") else ()
    return ("step", "exp_avg", "exp_avg_sq", *largest)


def _rmsprop(group: Group) -> tuple[str, ...]:
    momentum = ("momentum_buffer",) if group.get("momentum") else ()
    average = ("grad_avg",) if group.get("centered") else ()
    return ("step", "square_avg", *momentum, *average)


_NEEDED: dict[object, Callable[[Group], tuple[str, ...]]] = {
    optim.Adadelta: lambda _: ("step", "square_avg", "acc_delta"),
    optim.Adagrad: lambda _: ("step", "sum"),
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.Adamax: lambda _: ("step", "exp_avg", "exp_inf"),
    optim.ASGD: lambda _: ("step", "eta", "mu", "ax"),
    optim.NAdam: lambda _: ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    optim.RAdam: lambda _: ("step", "exp_avg", "exp_avg_sq"),
    optim.RMSprop: _rmsprop,
    optim.Rprop: lambda _: ("step", "prev", "step_size"),
    LAMB: lambda _: ("step", "exp_avg", "exp_avg_sq"),
}
"""These classes themselves; what derives from them may change anything."""


def needed_state(optimizer_class: object, group: Group) -> tuple[str, ...]:
    """What a parameter's state, if there is one, must have for a step; empty if it is not known."""
    needed = _NEEDED.get(optimizer_class)
    return () if needed is None else needed(group)


@cache
def marks() -> frozenset[str]:
    """Hyperparameters that some class of torch.optim, LAMB or LARS has, and others have not."""
    classes = [each for each in vars(optim).values() if inspect.isclass(each)]
    found = {
        name
        for each in (*classes, LAMB, LARS)
        if issubclass(each, optim.Optimizer)
        for name, parameter in inspect.signature(each).parameters.items()
        if isinstance(parameter.default, int | float | tuple | str)
        and not isinstance(parameter.default, bool)
    }
    return frozenset(found | _SWITCHES)
