# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint, read as if save_checkpoint() had written them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from farandole.checkpoint.dcp_folder import DcpFolder
from farandole.checkpoint.dcp_names import (
    named_tensors,
    names_of,
    prefix_of_model,
    prefix_of_optimizer,
    prefixes_of_optimizers,
)
from farandole.checkpoint.dcp_optimizer import DcpOptimizer
from farandole.checkpoint.dcp_tree import EncodedTree
from farandole.checkpoint.names import names_in_group, parameter_names, plain
from farandole.errors import CheckpointError, InvalidArgument, sentences
from farandole.optim.boxes import boxes_of, contiguous_strides

_MOST_IN_VALUES = 4096
"""Elements of a tensor that belongs to the program's own values."""

_STATES = {
    "scheduler": ("scheduler", "lr_scheduler"),
    "scaler": ("scaler", "grad_scaler"),
    "sampler": ("sampler",),
}
"""By our name: the top-level names under which programs save it."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DcpEntry:
    """A tensor, whose elements count in the order of its dimensions."""

    key: str
    """In the folder."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def strides(self) -> list[int]:
        """Of its elements without gaps."""
        return contiguous_strides(self.shape)


class DcpReader:
    """A Reader of what models and optimizers need of a folder."""

    world_size = 0
    """Nothing of each rank, as generators of random numbers, is in such a checkpoint."""

    def __init__(
        self,
        folder: DcpFolder,
        models: Mapping[str, nn.Module],
        optimizers: Mapping[str, Optimizer],
        holders: Mapping[str, Any],
    ) -> None:
        """Find what is loaded by its names.

        Args:
            folder: That is loaded.
            models: By their names, with dots.
            optimizers: By their names, with colons.
            holders: The scheduler, scaler and sampler that are loaded, by these words.

        Raises:
            CheckpointError: they are not there, or several times.
        """
        self._folder = folder
        self._staged: dict[tuple[str, int, int], torch.Tensor] = {}
        self._encoded = EncodedTree(folder)
        self._taken: list[str] = []  # keys, or starts with a dot: not the program's own values
        self._json: dict[str, Any] = {"aliases": {}, "models": {}, "optimizers": {}, "states": {}}
        self._models = models
        self._holders = holders
        for prefix, model in models.items():
            self._find_model(prefix, model)
        are_merged = _are_merged(folder, list(optimizers))
        for prefix, optimizer in optimizers.items():
            self._find_optimizer(prefix, optimizer, "" if are_merged else _dotted(prefix))
        self._find_states()
        self._json["values"] = self._own_values()

    @property
    def values(self) -> str:
        """As the index of a checkpoint has them."""
        return json.dumps(self._json)

    @cached_property
    def entries(self) -> dict[str, DcpEntry]:
        """By the keys of our checkpoints."""
        found = {}
        for key, there in self._encoded.tensors.items():
            described = self._folder.tensors[there]
            dtype = described.properties.dtype
            found[key] = DcpEntry(there, tuple(described.size), dtype)
        return found

    def read(self, key: str, offset: int, elements: int) -> torch.Tensor:
        """Elements of a tensor, of the chunks that have some of them."""
        entry = self.entries[key]
        flat = torch.empty(elements, dtype=entry.dtype)
        boxes = boxes_of(entry.shape, entry.strides, offset, offset + elements)
        self._folder.copy(entry.key, boxes, [box.view(flat, offset) for box in boxes])
        return flat

    def read_whole(self, key: str) -> torch.Tensor:
        """A whole tensor."""
        shape = self.entries[key].shape
        return self.read(key, 0, torch.Size(shape).numel()).view(shape)

    def check(self, key: str, offset: int, elements: int) -> None:
        """Read it, for there are no checksums, and keep it for read_into()."""
        if (key, offset, elements) not in self._staged:
            self._staged[key, offset, elements] = self.read(key, offset, elements)

    def check_share(self, key: str, rank: int, world_size: int) -> None:  # noqa: ARG002
        """The same of a whole tensor, on each rank."""
        self.check(key, 0, torch.Size(self.entries[key].shape).numel())

    def read_into(self, key: str, offset: int, into: torch.Tensor) -> None:
        """What check() has read, or read() does."""
        staged = self._staged.pop((key, offset, into.numel()), None)
        into.copy_(self.read(key, offset, into.numel()) if staged is None else staged)

    def read_whole_into(self, key: str, into: torch.Tensor) -> None:
        """The same of a whole tensor."""
        staged = self._staged.pop((key, 0, into.numel()), None)
        into.copy_(self.read_whole(key) if staged is None else staged.view(into.shape))

    def _find_model(self, given: str, model: nn.Module) -> None:
        tensors = named_tensors(model)
        prefix = prefix_of_model(self._folder, given, tensors)
        for several in (tensor.names for tensor in tensors):
            there = self._one_of_tied(prefix, several)
            self._encoded.tensors[given + there] = prefix + there
            for name in several:
                if name != there:
                    self._json["aliases"][given + name] = given + there
        own = {name for tensor in tensors for name in tensor.names}
        made = {name: value for name, value in model.state_dict().items() if name not in own}
        for name, value in made.items():
            self._take_state(f"model/{given}{name}", prefix + name, value)
        if prefix:
            self._taken.append(prefix)
            others = (*(prefix + name for name in made), *self._places_of_optimizers())
            self._json["models"][given] = [
                plain(key.removeprefix(prefix))
                for key in self._folder.tensors
                if key.startswith(prefix) and not key.startswith(others)
            ]
        else:
            self._taken += own

    def _one_of_tied(self, prefix: str, names: Sequence[str]) -> str:
        """A name under which the folder has a tensor of the model."""
        first, *others = [name for name in names if prefix + name in self._folder.tensors]
        for other in others:
            if not self._folder.are_equal(prefix + first, prefix + other):
                raise CheckpointError(
                    sentences(
                        "checkpoint-dcp-tied",
                        f"the checkpoint at '{self._folder.folder}' has other values in "
                        f"'{prefix}{first}' than in '{prefix}{other}'.",
                        "both are one tensor in the model, which cannot have two values.",
                        "load it into a model where they are two tensors.",
                    )
                )
        return first

    def _find_optimizer(self, given: str, optimizer: Optimizer, below: str) -> None:
        groups = optimizer.param_groups
        known = parameter_names(self._models)
        own_names = [names_in_group(groups, index, known) for index in range(len(groups))]
        others = self._names_without_prefixes(groups, own_names)
        all_names = [name for several in others.values() for name in several]
        prefix = prefix_of_optimizer(self._folder, below, all_names)
        encoded = EncodedTree(self._folder)
        described = DcpOptimizer(self._folder, prefix).described(own_names, others, encoded)
        for state in described["states"].values():
            _prepend(state, given)
        for key, there in encoded.tensors.items():
            self._encoded.tensors[given + key] = there
        self._json["optimizers"][given] = described

    def _names_without_prefixes(
        self, groups: Sequence[dict[str, Any]], own_names: Sequence[Sequence[str]]
    ) -> dict[str, list[str]]:
        """By our name of a parameter: those in its model."""
        in_models: dict[int, list[str]] = {}
        for model in self._models.values():
            for name, parameter in model.named_parameters(remove_duplicate=False):
                in_models.setdefault(id(parameter), []).extend(names_of(name))
        return {
            name: in_models.get(id(parameter), [name])
            for group, names in zip(groups, own_names, strict=True)
            for name, parameter in zip(names, group["params"], strict=True)
        }

    def _find_states(self) -> None:
        for name, top_level in _STATES.items():
            present = _state_of(self._holders.get(name))
            if present == {}:  # as of a disabled GradScaler, which leaves nothing in a folder
                self._json["states"][name] = {}
            for each in top_level:
                if self._below(f"{each}.") or each in self._folder.objects:
                    self._take_state(name, each, present)
                    break

    def _take_state(self, name: str, at: str, present: object) -> None:
        """What load_state_dict() of something will get, which has a state now."""
        is_leaf = at in self._folder.objects or at in self._folder.tensors
        keys = [at] if is_leaf else self._below(f"{at}.")
        if keys:
            start = at if is_leaf else f"{at}."
            self._taken.append(start)
            self._json["states"][name] = self._encoded.of(keys, start, name, present)

    def _own_values(self) -> dict[str, Any]:
        """The rest but for large tensors, and for objects whose classes are not plain."""
        taken = {*self._taken, *self._places_of_optimizers()}
        below = tuple(each for each in taken if each.endswith("."))
        keys: dict[str, list[str]] = {}
        large: dict[str, None] = {}
        for key in self._folder.keys:
            if key not in taken and not key.startswith(below):
                name = str(self._folder.path(key)[0])
                if self._is_small(key):
                    keys.setdefault(name, []).append(key)
                else:
                    large[name] = None
        if large:
            _logger.info("load_checkpoint() leaves the tensors of %s alone.", ", ".join(large))
        values = {}
        for name, several in keys.items():
            start = name if several == [name] else f"{name}."
            try:
                values[name] = self._encoded.of(several, start, f"values/{name}")
            except (CheckpointError, InvalidArgument) as met:
                _logger.warning("load_checkpoint() leaves '%s' out of the values: %s", name, met)
        return values

    def _is_small(self, key: str) -> bool:
        """Whether it may be a value of the program's: no tensor of a model that is not loaded."""
        described = self._folder.tensors.get(key)
        if described is None:
            return True
        return len(self._folder.path(key)) == 1 and described.size.numel() <= _MOST_IN_VALUES

    def _places_of_optimizers(self) -> list[str]:
        found = prefixes_of_optimizers(self._folder)
        names = ("state.", "param_groups.", "param_groups")
        return [f"{prefix}{name}" for prefix in found for name in names]

    def _below(self, prefix: str) -> list[str]:
        return [key for key in self._folder.keys if key.startswith(prefix)]


def _dotted(given: str) -> str:
    """How keys of the folder begin, by the name that the program gives an optimizer."""
    return f"{given.rstrip(':')}." if given else ""


def _are_merged(folder: DcpFolder, given: Sequence[str]) -> bool:
    """Whether the folder has several optimizers as get_state_dict(model, [a, b]) returns them."""
    places = prefixes_of_optimizers(folder)
    starts = tuple(_dotted(each) for each in given)
    if len(given) < 2 or len(places) != 1 or places[0].startswith(starts):
        return False
    return not DcpOptimizer(folder, places[0]).has_numbers


def _state_of(holder: Any) -> object:
    """Whose keys tell which those of the folder were; None if there is none."""
    try:
        return None if holder is None else holder.state_dict()
    except TypeError:  # a sampler, which asks how far the program is
        return None


def _prepend(state: Any, given: str) -> None:
    """Let keys of tensors begin with the name of the optimizer."""
    if isinstance(state, dict) and set(state) == {"!tensor"}:
        state["!tensor"] = given + state["!tensor"]
    elif isinstance(state, dict | list):
        for each in state.values() if isinstance(state, dict) else state:
            _prepend(each, given)
