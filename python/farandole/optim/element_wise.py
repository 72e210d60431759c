# SPDX-License-Identifier: Apache-2.0
"""Which optimizers may run on a part of a parameter."""

from __future__ import annotations

from typing import Any

from torch import optim

from farandole.errors import InvalidArgument, sentences

_ELEMENT_WISE: frozenset[object] = frozenset(
    {
        optim.Adadelta,
        optim.Adagrad,
        optim.Adamax,
        optim.ASGD,
        optim.NAdam,
        optim.RAdam,
        optim.RMSprop,
        optim.Rprop,
    }
)
_NEED_WHOLE_PARAMETERS: dict[type[optim.Optimizer], str] = {
    optim.LBFGS: "its step comes from dot products over all parameters",
    optim.SparseAdam: "it takes sparse gradients, and those of shards are dense",
    optim.Adafactor: "it factors second moments by the rows and columns of a matrix",
    optim.Muon: "it orthogonalizes whole matrices",
}


def check_element_wise(optimizer_class: Any, element_wise: bool | None) -> None:
    """Check that a class without fused loops may run on shards, which cut parameters anywhere.

    Raises:
        InvalidArgument: it needs whole parameters, or nobody knows.
    """
    if element_wise is None and optimizer_class in _ELEMENT_WISE:
        return
    why = ""
    if isinstance(optimizer_class, type):
        for known, reason in _NEED_WHOLE_PARAMETERS.items():
            if issubclass(optimizer_class, known):
                why = f"{reason}, but shards cut parameters anywhere."
    if why:
        fix = "take another optimizer, or this one unsharded, as after DistributedDataParallel."
    elif element_wise:
        return
    elif element_wise is not None:
        why = "it was called with element_wise=False, and shards cut parameters anywhere."
        fix = "take another optimizer, or this one unsharded, as after DistributedDataParallel."
    else:
        why = "shards cut parameters anywhere, and it is not known to treat each element alone."
        fix = (
            "pass element_wise=True if it updates each element from its own gradient and state "
            "and from hyperparameters, and from nothing else."
        )
    name = getattr(optimizer_class, "__qualname__", repr(optimizer_class))
    raise InvalidArgument(sentences(f"ZeroRedundancyOptimizer cannot shard {name}.", why, fix))
