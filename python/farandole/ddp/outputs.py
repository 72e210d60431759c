# SPDX-License-Identifier: Apache-2.0
"""The tensors in whatever a module returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn


def find_tensors(output: object) -> list[Tensor]:
    """Every tensor in tuples, lists, sets, mappings, dataclasses and objects with attributes."""
    found: list[Tensor] = []
    _search(output, found, set())
    return found


def _search(value: object, found: list[Tensor], seen: set[int]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
        return
    if value is None or isinstance(value, (bool, int, float, str, bytes, type, nn.Module)):
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for part in _parts(value):
        _search(part, found, seen)


def _parts(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list, set, frozenset)):
        return value
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if callable(value):
        return ()
    return list(getattr(value, "__dict__", {}).values())
