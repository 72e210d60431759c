# SPDX-License-Identifier: Apache-2.0
"""What parameters are called in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from farandole.errors import InvalidArgument, sentences

Models = nn.Module | Mapping[str, nn.Module] | None
Optimizers = Optimizer | Mapping[str, Optimizer] | None


_OF_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What torch.compile() and checkpoint_wrapper() of a layer add to the names within it."""


def plain(name: str) -> str:
    """The name without what wrappers add, as torch.distributed.checkpoint has it."""
    for each in _OF_WRAPPERS:
        name = name.replace(each, "")
    return name


def bare(module: nn.Module) -> nn.Module:
    """The program's own module within DistributedDataParallel and torch.compile()."""
    from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

    from farandole.ddp import DistributedDataParallel

    while True:
        if isinstance(module, DistributedDataParallel | TorchDistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = cast("nn.Module", module._orig_mod)
        else:
            return module


def models_of(models: Models) -> dict[str, nn.Module]:
    """By the prefix of their keys: empty for a single one."""
    if models is None:
        return {}
    if isinstance(models, nn.Module):
        return {"": bare(models)}
    _check_all("model", models, nn.Module)
    return {f"{name}.": bare(model) for name, model in models.items()}


def optimizers_of(optimizers: Optimizers) -> dict[str, Optimizer]:
    """By the prefix of their keys: empty for a single one."""
    if optimizers is None:
        return {}
    if isinstance(optimizers, Optimizer):
        return {"": optimizers}
    _check_all("optimizer", optimizers, Optimizer)
    return {f"{name}:": optimizer for name, optimizer in optimizers.items()}


def _check_all(argument: str, several: Mapping[str, Any], kind: type) -> None:
    """Raise InvalidArgument unless it is a dictionary of such objects: a state_dict(), say."""
    others: list[Any] = [several]
    if isinstance(several, Mapping):
        others = [each for each in several.values() if not isinstance(each, kind)]
    if others:
        raise InvalidArgument(
            sentences(
                "checkpoint-argument",
                f"a checkpoint got {argument}= with an object of the class "
                f"{type(others[0]).__qualname__}.",
                f"it takes a {kind.__qualname__} of torch, or several in a dictionary.",
                "pass the object itself, or a dictionary of names and objects.",
            )
        )


def parameter_names(models: Mapping[str, nn.Module]) -> dict[int, str]:
    """By id(): the key of each parameter of the models; of a tied one the first."""
    names: dict[int, str] = {}
    for prefix, model in models.items():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), prefix + plain(name))
    return names


def names_in_group(groups: list[dict[str, Any]], index: int, known: Mapping[int, str]) -> list[str]:
    """The keys of the parameters of an optimizer's group.

    Those of the model, else those that the program has given the optimizer (named_parameters()),
    else where they stand: "group.0/parameter.3".
    """
    group = groups[index]
    given = group.get("param_names") or []
    names = []
    for number, parameter in enumerate(group["params"]):
        stands = f"group.{index}/parameter.{number}"
        own = known.get(id(parameter))
        names.append(own or (plain(given[number]) if number < len(given) else stands))
    return names


def own_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers by all their names.

    A value of state_dict() that is another one under its name was made for it.
    """
    own: dict[str, torch.Tensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    own[plain(f"{prefix}.{name}" if prefix else name)] = tensor
    return own


def is_torchs_zero(optimizer: Optimizer) -> bool:
    """Whether each rank has the state of other parameters, of which only rank 0 may learn."""
    return any(
        each.__name__ == "ZeroRedundancyOptimizer" and each.__module__.startswith("torch.")
        for each in type(optimizer).__mro__
    )
