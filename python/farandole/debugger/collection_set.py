# SPDX-License-Identifier: Apache-2.0
"""The collections of a hook, and which of them a step saves."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from torch import nn

from farandole.debugger.built_in_collections import CollectionKeys, add_module, built_in_collections
from farandole.debugger.collection import Collection, no_collection
from farandole.debugger.modes import ModeKeys
from farandole.debugger.save_config import SaveConfig
from farandole.logs import LOGGER

_NOT_IN_EVALUATION = (CollectionKeys.GRADIENTS, CollectionKeys.OPTIMIZER_VARIABLES)


class CollectionSet:
    """Collections by name, some of which are included in what is saved; losses always are."""

    def __init__(
        self,
        save_config: SaveConfig,
        include_regex: str | Iterable[str] | None,
        include_collections: Iterable[str] | None,
        save_all: bool,
    ) -> None:
        self.save_config = save_config
        self.by_name = built_in_collections()
        if isinstance(include_collections, str):
            include_collections = [include_collections]
        self._included = {CollectionKeys.LOSSES, *(include_collections or ())}
        if include_regex is not None:
            self.by_name[CollectionKeys.DEFAULT].include(include_regex)
            self._included.add(CollectionKeys.DEFAULT)
        self._told: set[str] = set()
        if save_all:
            self._included.add(CollectionKeys.ALL)

    def get(self, name: str, create: bool = True) -> Collection:
        """The collection ``name``; a new one if there is none.

        Raises:
            InvalidArgument: there is none, and ``create`` is False.
        """
        if name not in self.by_name and not create:
            raise no_collection(name, self.by_name)
        return self.by_name.setdefault(name, Collection(name))

    def add(self, collection: Collection) -> None:
        """Add one, in place of one of the same name."""
        self.by_name[collection.name] = collection

    def add_module(self, module: nn.Module, name: str) -> None:
        """Let those that want a module's tensors know its name."""
        add_module(self.by_name, module, name)

    def add_root(self, name: str) -> None:
        """Say whose inputs and outputs are those of the whole model."""
        for key, suffix in ((CollectionKeys.INPUTS, "input"), (CollectionKeys.OUTPUTS, "output")):
            self.by_name[key].include(f"^{name}_{suffix}_")

    def of_step(self, mode: ModeKeys, step: int) -> list[Collection]:
        """The included ones that step ``step`` of ``mode`` saves."""
        names = self.by_name if CollectionKeys.ALL in self._included else self._included
        included = [self.get(name) for name in names]
        return [each for each in included if self.is_saved(each, mode, step)]

    def is_saved(self, collection: Collection, mode: ModeKeys, step: int) -> bool:
        """Whether step ``step`` of ``mode`` saves ``collection``, if it is included."""
        if mode in (ModeKeys.EVAL, ModeKeys.PREDICT) and collection.name in _NOT_IN_EVALUATION:
            return False
        config = self.save_config
        if collection.save_config is not None:
            config = SaveConfig.parse(collection.save_config).merged(config)
        return config.should_save_step(mode, step)

    def warn_of_empty(self) -> None:
        """Name included ones to which no tensor can belong, once each: a name may be misspelt."""
        built_in = built_in_collections()
        for name in sorted(self._included - self._told - set(built_in)):
            if not self.get(name).is_empty():
                continue
            self._told.add(name)
            near = difflib.get_close_matches(name, built_in, n=1)
            LOGGER.warning(
                "debugger: the collection %r has no tensors, so nothing is saved of it; %s",
                name,
                f"the nearest name is {near[0]!r}" if near else "give it an include_regex",
            )

    def to_json(self) -> dict[str, Any]:
        """What a trial needs of them."""
        return {name: collection.membership() for name, collection in self.by_name.items()}
