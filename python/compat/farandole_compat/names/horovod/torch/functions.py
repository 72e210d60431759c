# SPDX-License-Identifier: Apache-2.0
"""What training begins with: the same parameters, state and objects on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from farandole.errors import InvalidArgument, sentences
from farandole.named import objects, optimizer_state
from torch import Tensor

from horovod.common.exceptions import as_horovod
from horovod.common.process_sets import ProcessSet, global_process_set, named_of
from horovod.torch.moves import broadcast_async_, root_in
from horovod.torch.running import synchronize


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give all ranks the parameters of one: a state_dict(), named_parameters() or parameters().

    Values that are no tensors are left alone.
    """
    if isinstance(params, Mapping):
        pairs: list[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (Tensor, str)):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise InvalidArgument(
            sentences(
                "horovod-parameters",
                f"broadcast_parameters() got a {type(params).__name__}.",
                "it takes a dictionary, or pairs of names and tensors.",
                "pass model.state_dict() or model.named_parameters().",
            )
        )
    running = [
        broadcast_async_(each.detach(), root_rank, name, process_set)
        for name, each in pairs
        if isinstance(each, Tensor)
    ]
    for handle in running:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give all ranks the state and the options of one rank's optimizer, also if it has none yet."""
    del model  # Horovod makes a first step to have a state, for which it must know sparse gradients
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument(
            sentences(
                "horovod-lbfgs",
                "cannot broadcast torch.optim.LBFGS state.",
                "it is one of the whole optimizer, and depends on the order of its steps.",
                "broadcast the parameters before the first step: then all ranks form the same.",
            )
        )
    with as_horovod():
        optimizer_state.broadcast_optimizer_state(
            named_of(process_set), optimizer, root_in(process_set, root_rank)
        )


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of a rank, pickled."""
    with as_horovod():
        root = root_in(process_set, root_rank)
        named = named_of(process_set)
        return objects.broadcast_object(named, obj, root, name or "object")


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks, pickled."""
    with as_horovod():
        return objects.all_gather_object(named_of(process_set), obj, name or "object")
