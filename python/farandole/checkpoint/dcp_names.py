# SPDX-License-Identifier: Apache-2.0
"""Where models and optimizers are among the keys of torch.distributed.checkpoint.

A program gives dcp.save() a dictionary of its own: {"model": ..., "optimizer": ...}, or a
state_dict() as it is, or one object in which both are. So what is loaded is found by the names of
its parameters, below any prefix. If several prefixes have them, the program says which it wants,
by the name that it gives to load_checkpoint(): model={"ema": net}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from farandole.checkpoint.dcp_folder import DcpFolder
from farandole.checkpoint.names import own_tensors, plain
from farandole.errors import CheckpointError, sentences

_OF_MODELS = frozenset({"model", "state_dict"})
_OF_OPTIMIZERS = frozenset({"optimizer", "optim"})
_WRAPPERS = frozenset({"module", "_orig_mod"})
"""Names between a model and its tensors, of DistributedDataParallel and torch.compile()."""
_GROUPS = re.compile(r"(?:^|(?<=\.))param_groups(?=\.|$)")


@dataclass
class NamedTensor:
    """A parameter or buffer that is saved."""

    names: list[str]
    """More than one if it is tied."""
    shape: tuple[int, ...]


def names_of(name: str) -> list[str]:
    """How a name may have been saved: by torch's state functions, and by state_dict()."""
    return list(dict.fromkeys([plain(name), name]))


def named_tensors(model: nn.Module) -> list[NamedTensor]:
    """Those of a model, in its order."""
    own = own_tensors(model)
    found: dict[int, NamedTensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        tensor = own.get(plain(name))
        if tensor is not None and tensor is value:
            named = found.setdefault(id(tensor), NamedTensor([], tuple(tensor.shape)))
            named.names += names_of(name)
    return list(found.values())


def prefix_of_model(folder: DcpFolder, given: str, tensors: list[NamedTensor]) -> str:
    """Below which all tensors of a model are: "model.", "app.model.module.", "".

    Args:
        folder: That is loaded.
        given: How the program calls the model, with a dot; empty if it has only one.
        tensors: Of the model.

    Raises:
        CheckpointError: there is none, or there are several.
    """
    if not tensors:
        return given
    found = _prefixes_before(folder.tensors, tensors[0].names, given)
    lacks = {prefix: _missing(folder, prefix, tensors, False) for prefix in found}
    whole = [prefix for prefix, missing in lacks.items() if not missing]
    if len(whole) > 1:  # a layer of the same names may be in any model
        lacks = {prefix: _missing(folder, prefix, tensors, True) for prefix in whole}
        whole = [prefix for prefix, missing in lacks.items() if not missing]
    if whole:
        return _only(folder, whole, _OF_MODELS, "tensors of the model", "model")
    best = min(lacks, key=lambda prefix: len(lacks[prefix]), default=None)
    where = given if best is None else best
    missing = tensors[0].names[0] if best is None else lacks[best][0]
    raise CheckpointError(
        sentences(
            "checkpoint-dcp-model",
            f"the checkpoint at '{folder.folder}' has no tensor '{where}{missing}' of the model.",
            f"its top-level names are {folder.top_level_names()}, and none of them has all tensors "
            "of the model, by the names in its state_dict() and with the same shapes.",
            'load it into the model that was saved; name it as in the checkpoint, model={"name": '
            "model}, if it has several.",
        )
    )


def prefixes_of_optimizers(folder: DcpFolder) -> list[str]:
    """Before each "param_groups"."""
    return list(
        dict.fromkeys(
            key[: match.start()] for key in folder.keys for match in _GROUPS.finditer(key)
        )
    )


def prefix_of_optimizer(folder: DcpFolder, given: str, parameters: Iterable[str]) -> str:
    """Below which param_groups and the states of some parameters are: "optimizer.", "app.optim.".

    Args:
        folder: That is loaded.
        given: How the program calls the optimizer, with a dot; empty if it has only one.
        parameters: Their names.

    Raises:
        CheckpointError: there is none, or there are several.
    """
    all_of_them = prefixes_of_optimizers(folder)
    found = [prefix for prefix in all_of_them if prefix.startswith(given)]
    if len(found) > 1:
        with_state = _with_state(folder, found, parameters)
        return _only(folder, with_state or found, _OF_OPTIMIZERS, "an optimizer", "optimizer")
    if found:
        return found[0]
    there = ", ".join(repr(prefix.rstrip(".")) for prefix in all_of_them)
    raise CheckpointError(
        sentences(
            "checkpoint-dcp-optimizer",
            f"the checkpoint at '{folder.folder}' has no optimizer "
            + (f"below the name '{given.rstrip('.')}'." if given else "in it."),
            f"its top-level names are {folder.top_level_names()}; those with the param_groups of "
            f"an optimizer: {there or 'none'}.",
            'leave optimizer= out, or name it as in the checkpoint: optimizer={"name": optimizer}.',
        )
    )


def _prefixes_before(keys: Iterable[str], names: list[str], given: str) -> list[str]:
    found: dict[str, None] = {}
    for key in keys:
        for name in names:
            prefix = key.removesuffix(name)
            if prefix != key and (not prefix or prefix.endswith(".")) and prefix.startswith(given):
                found[prefix] = None
    return list(found)


def _missing(
    folder: DcpFolder, prefix: str, tensors: list[NamedTensor], by_shape: bool
) -> list[str]:
    return [
        tensor.names[0]
        for tensor in tensors
        if not any(
            (there := folder.tensors.get(prefix + name)) is not None
            and (not by_shape or tuple(there.size) == tensor.shape)
            for name in tensor.names
        )
    ]


def _with_state(folder: DcpFolder, prefixes: list[str], parameters: Iterable[str]) -> list[str]:
    starts = {f"{prefix}state.{name}.": prefix for name in parameters for prefix in prefixes}
    return list(dict.fromkeys(starts[start] for start in _starts_among(folder.keys, starts)))


def _starts_among(keys: Iterable[str], starts: Mapping[str, str]) -> Iterable[str]:
    """Those of ``starts`` with which some key begins."""
    for key in keys:
        for dot in (i for i, letter in enumerate(key) if letter == "."):
            if key[: dot + 1] in starts:
                yield key[: dot + 1]


def _only(
    folder: DcpFolder, prefixes: list[str], usual: frozenset[str], what: str, argument: str
) -> str:
    """The only one, or the only one with a usual name at the top level."""
    named = [each for each in prefixes if _is_called(each, usual)]
    for several in (prefixes, named):
        if len(several) == 1:
            return several[0]
    there = ", ".join(repr(prefix.rstrip(".")) for prefix in prefixes)
    raise CheckpointError(
        sentences(
            "checkpoint-dcp-ambiguous",
            f"the checkpoint at '{folder.folder}' has {what} several times: below {there}.",
            "they have the same names, so that any of them could be meant.",
            f'say which one: {argument}={{"name": {argument}}}, by the name as it is above.',
        )
    )


def _is_called(prefix: str, usual: frozenset[str]) -> bool:
    """Whether a usual name is the whole prefix: {"best": {"model": ...}} is another model."""
    first, *rest = prefix.rstrip(".").split(".")
    return first in usual and _WRAPPERS.issuperset(rest)
