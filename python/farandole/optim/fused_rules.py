# SPDX-License-Identifier: Apache-2.0
"""The optimizer classes whose loops are in C++, and how a group becomes a rule there."""

from __future__ import annotations

from collections.abc import Callable

from torch import optim

from farandole import _C
from farandole.optim.lamb import LAMB
from farandole.optim.lars import LARS
from farandole.optim.parameter_groups import Group


def _sgd(group: Group) -> _C.UpdateRule:
    return _C.sgd_rule(
        lr=float(group["lr"]),
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        weight_decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
        maximize=bool(group["maximize"]),
    )


def _adam(group: Group) -> _C.UpdateRule:
    beta1, beta2 = group["betas"]
    return _C.adam_rule(
        lr=float(group["lr"]),
        beta1=float(beta1),
        beta2=float(beta2),
        eps=float(group["eps"]),
        weight_decay=float(group["weight_decay"]),
        amsgrad=bool(group["amsgrad"]),
        maximize=bool(group["maximize"]),
        decoupled_weight_decay=bool(group["decoupled_weight_decay"]),
    )


RULES: dict[object, Callable[[Group], _C.UpdateRule]] = {
    optim.SGD: _sgd,
    optim.Adam: _adam,
    optim.AdamW: _adam,
    LAMB: LAMB.rule,
    LARS: LARS.rule,
}
"""These classes themselves; what derives from them may change anything."""

COUNT_STEPS: frozenset[object] = frozenset({optim.Adam, optim.AdamW, LAMB})
"""Those whose state has a "step"."""
