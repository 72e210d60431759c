# SPDX-License-Identifier: Apache-2.0
"""What `farandole migrate check` knows is what the modules have; run this file to renew it."""

from __future__ import annotations

import dis
import importlib
import inspect
import json
import pkgutil
import typing
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from farandole_compat import finder

FILE = Path(__file__).parents[2] / "python" / "farandole" / "migrate" / "known_names.json"
REPLACEMENTS = {
    "farandole": ["DistributedDataParallel", "ZeroRedundancyOptimizer", "init_process_group"]
}
"""Of ours, whose arguments scripts of torch are compared with."""


def modules() -> dict[str, list[str]]:
    """The names in each module that can be imported, in the order of the modules."""
    finder.install()
    found: dict[str, list[str]] = dict(REPLACEMENTS)
    for top in sorted(finder.NAMES):
        if not (Path(finder.FOLDER) / top).exists():
            continue
        package = importlib.import_module(top)
        paths = pkgutil.walk_packages(package.__path__, f"{top}.", onerror=lambda _: None)
        for name in sorted([top, *(each.name for each in paths)]):
            try:
                found[name] = names_of(importlib.import_module(name))
            except ImportError:  # the error says what to do instead
                continue
    return found


def names_of(module: ModuleType) -> list[str]:
    """What it offers: ``__all__``, or what is defined in it."""
    if hasattr(module, "__all__"):
        return sorted({*module.__all__, *({"__version__"} & set(vars(module)))})
    return sorted(
        name
        for name, value in vars(module).items()
        if name == "__version__"
        or (not name.startswith("_") and getattr(value, "__module__", "") == module.__name__)
    )


class Writer:
    """Describes objects; the second time by the name that they had the first time."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def entries(self) -> dict[str, dict[str, Any]]:
        every = modules()
        for module in sorted(every, key=lambda name: (name.count("."), name)):
            for name in every[module]:
                value = getattr(importlib.import_module(module), name)
                if is_described(value):
                    self._seen.setdefault(id(value), f"{module}.{name}")
        return {
            module: {name: self.entry(module, name) for name in names}
            for module, names in every.items()
        }

    def entry(self, module: str, name: str) -> Any:
        value = getattr(importlib.import_module(module), name)
        first = self._seen.get(id(value), f"{module}.{name}")
        return self.described(value) if first == f"{module}.{name}" else first

    def described(self, value: Any) -> Any:
        if not is_described(value):
            return None
        found: dict[str, Any] = {}
        takes = arguments(value)
        if takes is not None:
            found["takes"] = takes
        if inspect.isclass(value):
            found["has"] = None
            if not is_open(value):
                found["has"] = {name: self.member(value, name) for name in members(value)}
        else:
            gives = self.result(value)
            if gives:
                found["gives"] = gives
        return found

    def member(self, owner: type, name: str) -> Any:
        value = inspect.getattr_static(owner, name, None)
        if isinstance(value, (classmethod, staticmethod)):
            value = getattr(owner, name)
        if isinstance(value, property):
            value = value.fget
            gives = self.result(value)
            return {"gives": gives} if gives else None
        return self.described(value) if inspect.isroutine(value) else None

    def result(self, function: Any) -> str | None:
        """The class that a function returns, if it is one of these; None may stand beside it."""
        try:
            hints = typing.get_type_hints(function)
        except (NameError, TypeError):
            return None
        kind = hints.get("return")
        kinds = [each for each in typing.get_args(kind) or (kind,) if each is not type(None)]
        return self._seen.get(id(kinds[0])) if len(kinds) == 1 else None


def is_described(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def arguments(value: Any) -> list[str] | None:
    """The names of its arguments, with "*" where it takes any others; None if it tells none."""
    if inspect.isclass(value) and issubclass(value, (BaseException, Enum)):
        return None
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None
    more = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [each.name for each in parameters if each.kind not in more and each.name != "self"]
    return names + ["*"] * any(each.kind in more for each in parameters)


def is_open(kind: type) -> bool:
    """Whether its objects have attributes that the class does not tell."""
    ways = {"__getattr__", "__setattr__"}
    has_any = any(ways & set(vars(each)) for each in kind.__mro__[:-1])
    return has_any or issubclass(kind, (BaseException, torch.optim.Optimizer))


def members(kind: type) -> list[str]:
    """What is public of a class and of its objects."""
    names = set(dir(kind))
    names |= {name for name, value in vars(type(kind)).items() if isinstance(value, property)}
    for each in kind.__mro__:
        names |= set(vars(each).get("__annotations__", ()))
        code = getattr(vars(each).get("__init__"), "__code__", None)
        steps = dis.get_instructions(code) if code is not None else ()
        names |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return sorted(name for name in names if not name.startswith("_"))


def generated() -> str:
    """One line for each name."""
    blocks = []
    for module, names in Writer().entries().items():
        lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items()]
        inside = ",\n".join(lines)
        blocks.append(
            f" {json.dumps(module)}: {{\n{inside}\n }}" if lines else f' "{module}": {{}}'
        )
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def test_the_names_are_those_of_the_modules() -> None:
    assert generated() == FILE.read_text(), f"fix: python tests/python/{Path(__file__).name}"


if __name__ == "__main__":
    FILE.write_text(generated())
