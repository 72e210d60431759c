# SPDX-License-Identifier: Apache-2.0
"""The names that farandole-compat has, with their arguments and results.

They are in known_names.json, which ``python tests/python/test_migrate_names.py`` makes of the
modules themselves, and a test compares. A name has one of these::

    null                       something of which no more is known
    "horovod.torch.allreduce"  the same as that
    {"takes": [...],           the arguments, "*" for any others; without it any
     "gives": "...",           the class of the result, if it is a known one
     "has": {...}}             of a class: the attributes of its objects, null for any

What takes arguments and is no class has no attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOPS = ("horovod", "sparkdl", "smdistributed", "smdebug", "smppy", "smprof")
"""The names of libraries that farandole-compat has."""


class Known:
    """Looks names up. Immutable; any thread."""

    def __init__(self, modules: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        path = Path(__file__).with_name("known_names.json")
        self._modules = json.loads(path.read_text("utf-8")) if modules is None else modules

    def has(self, name: str) -> bool:
        """Whether it is a module, something in one, or an attribute of an object of a class."""
        return self.has_module(name) or self._find(name) is not None

    def has_module(self, name: str) -> bool:
        """Whether ``import`` finds it."""
        return name in self._modules

    def is_no_module(self, name: str) -> bool:
        """Whether it is there, but ``import`` does not find it."""
        return not self.has_module(name) and self.has(name)

    def canonical(self, name: str) -> str:
        """Its shortest name: of ``horovod.torch.mpi_ops.rank`` it is ``horovod.torch.rank``."""
        found = self._find(name)
        return found[0] if found else name

    def arguments(self, name: str) -> list[str] | None:
        """What a function takes, in their order, and "*" for any others; None: not known."""
        takes: list[str] | None = self._entry(name).get("takes")
        return takes

    def result(self, name: str) -> str | None:
        """The class of what a call gives; None if that is not known."""
        found = self._find(name)
        if found is None:
            return None
        own, entry = found
        if not isinstance(entry, dict):
            return None
        gives: str | None = entry.get("gives")
        return own if entry.get("has") is not None else gives

    def names_in(self, name: str) -> list[str]:
        """Those in a module or of a class's objects, and the modules below it."""
        inside = list(self._modules.get(name) or self._entry(name).get("has") or ())
        below = (
            each.removeprefix(f"{name}.") for each in self._modules if each.startswith(f"{name}.")
        )
        return [*inside, *(each for each in below if "." not in each)]

    def _entry(self, name: str) -> dict[str, Any]:
        found = self._find(name)
        return found[1] if found and isinstance(found[1], dict) else {}

    def _find(self, name: str) -> tuple[str, Any] | None:
        """The name that it has in its first module, and its entry."""
        module = name
        rest: list[str] = []
        while module not in self._modules:
            module, _, last = module.rpartition(".")
            if not module:
                return None
            rest.insert(0, last)
        if not rest:
            return name, {}
        first, *attributes = rest
        if first not in self._modules[module]:
            return None
        entry = self._modules[module][first]
        if isinstance(entry, str):
            return self._find(".".join([entry, *attributes]))
        return _attribute(f"{module}.{first}", entry, attributes)


def _attribute(name: str, entry: Any, attributes: list[str]) -> tuple[str, Any] | None:
    for attribute in attributes:
        is_any = not isinstance(entry, dict) or not {"takes", "has"} & set(entry)
        members = None if is_any else entry.get("has", ())
        if members is None:
            return f"{name}.{attribute}", None
        if attribute not in members:
            return None
        name, entry = f"{name}.{attribute}", members[attribute]
    return name, entry
