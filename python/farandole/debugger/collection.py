# SPDX-License-Identifier: Apache-2.0
"""A named set of tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from farandole.debugger import config_json
from farandole.debugger.reduction_config import ReductionConfig
from farandole.debugger.save_config import SaveConfig
from farandole.errors import InvalidArgument, sentences

_ARGUMENTS = (
    *("name", "include_regex", "tensor_names"),
    *("reduction_config", "save_config", "save_histogram"),
)


class Collection:
    """Tensors that are saved at the same steps, with the same reductions.

    A tensor belongs to it if one of ``include_regex`` is found in its name, if it is among
    ``tensor_names``, or if it is an input or output of a module of ``add_module_tensors()``.
    Without configs of its own it has those of the hook.
    """

    def __init__(
        self,
        name: str,
        include_regex: str | Iterable[str] | None = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | None = None,
        save_histogram: bool = True,
    ) -> None:
        """Make it; ``save_histogram`` is without effect."""
        self.name = name
        self.include_regex: list[str] = []
        self.tensor_names = set(tensor_names or ())
        self.reduction_config = reduction_config
        self.save_config = save_config
        self.save_histogram = save_histogram
        self.modules: MutableMapping[nn.Module, tuple[bool, bool]] = WeakKeyDictionary()
        self.include(include_regex or ())

    def include(self, regex: str | Iterable[str]) -> None:
        """Add one or several regular expressions.

        Raises:
            InvalidArgument: one of them is none.
        """
        added = [regex] if isinstance(regex, str) else list(regex)
        for each in added:
            _check_regex(self.name, each)
        self.include_regex += added

    def add_tensor_name(self, name: str) -> None:
        """Add one tensor."""
        self.tensor_names.add(name)

    def add_module_tensors(
        self, module: nn.Module, inputs: bool = False, outputs: bool = True
    ) -> None:
        """Add what a module, which will be registered, takes or returns."""
        self.modules[module] = (inputs, outputs)

    def take_name_of(self, module: nn.Module, name: str) -> None:
        """Include the tensors of a module that is registered as ``name``."""
        inputs, outputs = self.modules.get(module, (False, False))
        for is_included, suffix in ((inputs, "_input_"), (outputs, "_output_")):
            if is_included:
                self.include(f"^{re.escape(name)}{suffix}")

    def has(self, tensor_name: str) -> bool:
        """Whether a tensor of this name belongs to it."""
        return tensor_name in self.tensor_names or any(
            re.search(regex, tensor_name) for regex in self.include_regex
        )

    def is_empty(self) -> bool:
        """Whether no tensor can belong to it."""
        return not (self.include_regex or self.tensor_names or self.modules)

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Collection:
        """A collection of its arguments, as to_json_dict() has them.

        Raises:
            InvalidArgument: ``params`` has other keys, no name, or configs that cannot be.
        """
        given = config_json.checked(cls.__name__, params, _ARGUMENTS)
        if "name" not in given:
            raise config_json.wrong(cls.__name__, params, "it has no name")
        for key, config in (("reduction_config", ReductionConfig), ("save_config", SaveConfig)):
            if isinstance(given.get(key), Mapping):
                given[key] = config.from_dict(given[key])
        return cls(**given)

    @classmethod
    def from_json(cls, text: str) -> Collection:
        """A collection of what to_json() has returned; raises as from_dict()."""
        return cls.from_dict(config_json.object_of(cls.__name__, text))

    def to_json_dict(self) -> dict[str, Any]:
        """Its arguments by their names. Modules that were added are in it once they have names."""
        steps = None if self.save_config is None else SaveConfig.parse(self.save_config)
        return {
            "name": self.name,
            **self.membership(),
            "reduction_config": self.reduction_config and self.reduction_config.to_json_dict(),
            "save_config": steps and steps.to_json_dict(),
            "save_histogram": self.save_histogram,
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_json_dict())

    def membership(self) -> dict[str, Any]:
        """Which tensors belong to it, as trials read it."""
        return {
            "include_regex": list(self.include_regex),
            "tensor_names": sorted(self.tensor_names),
        }


def _check_regex(collection: str, regex: str) -> None:
    """Before it is looked for in the middle of a training."""
    try:
        re.compile(regex)
    except re.error as error:
        raise InvalidArgument(
            sentences(
                "debugger-regex",
                f"the collection {collection!r} got the regular expression {regex!r}.",
                f"{error}.",
                "pass one that re.compile() takes; re.escape(name) makes one of a name.",
            )
        ) from error


def no_collection(name: str, known: Iterable[str]) -> InvalidArgument:
    """What is raised where there is no collection ``name``."""
    return InvalidArgument(
        sentences(
            "debugger-collection",
            f"there is no collection {name!r}.",
            f"there are {', '.join(sorted(known))}.",
            "ask for one of these, or add it to the hook with add_collection().",
        )
    )
