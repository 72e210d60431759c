# SPDX-License-Identifier: Apache-2.0
"""How an optimizer's parameters may be divided among ranks."""

from __future__ import annotations

from typing import Any, Literal

from torch import optim

from farandole.errors import InvalidArgument, sentences
from farandole.optim.fused_rules import RULES

Partition = Literal["elements", "parameters"]
"""Shards of one size, cut anywhere, or whole parameters."""

_ELEMENT_WISE: frozenset[object] = frozenset(
    {
        *RULES,
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
"""These classes themselves; what derives from them may change anything."""
_NEED_WHOLE_PARAMETERS: dict[type[optim.Optimizer], str] = {
    optim.Adafactor: "it factors second moments by the rows and columns of a matrix",
    optim.Muon: "it orthogonalizes whole matrices",
}
_NEED_ALL_PARAMETERS: dict[type[optim.Optimizer], str] = {
    optim.LBFGS: "its step uses dot products over all parameters, but each rank updates only its "
    "own.",
    optim.SparseAdam: "it needs sparse gradients, and the gradients of shards are dense.",
}


def is_element_wise(optimizer_class: object) -> bool:
    """Whether a class is known to update each element alone (LAMB and LARS know shards)."""
    return optimizer_class in _ELEMENT_WISE


def partition_for(
    optimizer_class: Any, element_wise: bool | None, partition: Partition | None
) -> Partition:
    """How to divide parameters for a class.

    Args:
        optimizer_class: Of torch, or any other.
        element_wise: What the program says of it, if anything.
        partition: What the program chose, if it did.

    Raises:
        InvalidArgument: it can be divided in no way, or not in that one.
    """
    _check_can_be_divided(optimizer_class)
    if partition not in (None, "elements", "parameters"):
        raise InvalidArgument(
            sentences(
                "partition",
                f"ZeroRedundancyOptimizer got partition={partition!r}.",
                'parameters are either divided into shards of equal size ("elements") or assigned '
                'to one rank each ("parameters").',
                "pass one of these, or leave the argument out.",
            )
        )
    if partition is None and element_wise is not None:
        partition = "elements" if element_wise else "parameters"
    if partition is None:
        partition = "elements" if is_element_wise(optimizer_class) else "parameters"
    if partition == "elements":
        _check_needs_no_whole_parameters(optimizer_class, element_wise)
    return partition


def _check_can_be_divided(optimizer_class: Any) -> None:
    why = ""
    fix = "use another optimizer, or use this one without sharding after DistributedDataParallel."
    if not callable(optimizer_class):
        why = "it is neither a class nor a function that makes an optimizer."
        named = isinstance(optimizer_class, str) and hasattr(optim, optimizer_class)
        fix = (
            f"pass a class, such as torch.optim.{optimizer_class if named else 'AdamW'}, and its "
            "arguments by keyword."
        )
    elif isinstance(optimizer_class, type) and not issubclass(optimizer_class, optim.Optimizer):
        why = "it is not a torch.optim.Optimizer."
    for known, reason in _NEED_ALL_PARAMETERS.items():
        if isinstance(optimizer_class, type) and issubclass(optimizer_class, known):
            why = reason
    if why:
        raise InvalidArgument(
            sentences(
                "cannot-shard",
                f"ZeroRedundancyOptimizer cannot shard {name_of(optimizer_class)}.",
                why,
                fix,
            )
        )


def checked_optimizer(optimizer_class: Any, made: object) -> optim.Optimizer:
    """What ``optimizer_class`` has made, if that is an optimizer; else InvalidArgument."""
    if isinstance(made, optim.Optimizer):
        return made
    raise InvalidArgument(
        sentences(
            "not-an-optimizer",
            f"ZeroRedundancyOptimizer cannot shard {name_of(optimizer_class)}.",
            f"it made an {type(made).__qualname__}, not a torch.optim.Optimizer.",
            "pass an optimizer class, or a function that makes an optimizer.",
        )
    )


def _check_needs_no_whole_parameters(optimizer_class: Any, element_wise: bool | None) -> None:
    why = ""
    if isinstance(optimizer_class, type):
        for known, reason in _NEED_WHOLE_PARAMETERS.items():
            if issubclass(optimizer_class, known):
                why = f"{reason}, but shards by elements divide parameters at any position."
    if element_wise is False:
        why = (
            "it was called with element_wise=False, but shards by elements divide parameters at "
            "any position."
        )
    if why:
        raise InvalidArgument(
            sentences(
                "cannot-shard-by-elements",
                f"ZeroRedundancyOptimizer cannot shard {name_of(optimizer_class)} by elements.",
                why,
                'pass partition="parameters", or leave partition and element_wise out.',
            )
        )


def name_of(optimizer_class: Any) -> str:
    """As messages call it."""
    if isinstance(optimizer_class, optim.Optimizer):  # its repr has a line for each setting
        return f"{type(optimizer_class).__qualname__} object"
    return getattr(optimizer_class, "__qualname__", repr(optimizer_class))
