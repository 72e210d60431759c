# SPDX-License-Identifier: Apache-2.0
"""Nested values of torch.distributed.checkpoint in the JSON of our checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.checkpoint import tree
from farandole.checkpoint.dcp_folder import DcpFolder


class _Branch(dict[str | int, Any]):
    """A dictionary or list of the folder; other dictionaries are the JSON of leaves."""


class EncodedTree:
    """Makes JSON of keys of a folder, and collects which tensors are meant by which new key."""

    def __init__(self, folder: DcpFolder) -> None:
        """Of a folder."""
        self._folder = folder
        self.tensors: dict[str, str] = {}
        """By the key in the JSON: that in the folder."""

    def of(self, keys: Sequence[str], start: str, name: str, like: object = None) -> Any:
        """What is at ``keys``, which begin with ``start``.

        The folder has every key of a dictionary as a string, so that 3 and "3" are one.

        Args:
            keys: All that belongs to a value.
            start: With the dot, or the key itself if it is the only one.
            name: What keys of tensors in the JSON begin with.
            like: A value of the same structure, which has the keys as they were, if there is one.
        """
        if list(keys) == [start]:
            return self._leaf(start, name)
        root = _Branch()
        for key in keys:
            rest = key.removeprefix(start)
            *outer, last = self._path_within(key, rest)
            at = root
            for each in outer:
                at = at.setdefault(each, _Branch())
            at[last] = self._leaf(key, f"{name}/{rest.replace('.', '/')}")
        return _json_of(root, like)

    def _path_within(self, key: str, rest: str) -> tuple[str | int, ...]:
        """The last keys of the dictionaries, which have the text ``rest``."""
        path: tuple[str | int, ...] = ()
        for each in reversed(self._folder.path(key)):
            path = (each, *path)
            if ".".join(map(str, path)) == rest:
                return path
        return tuple(rest.split("."))

    def _leaf(self, key: str, name: str) -> Any:
        described = self._folder.tensors.get(key)
        if described is None or math.prod(described.size) <= 1:
            return tree.encode(self._folder.value(key), key)
        self.tensors[name] = key
        return {"!tensor": name}


def _json_of(value: Any, like: object) -> Any:
    """With lists where keys are numbers, and with keys of the kinds that those of ``like`` are."""
    if not isinstance(value, _Branch):
        return value
    if _is_list(value, like):
        items = like if isinstance(like, list | tuple) else ()
        numbers = sorted((int(key), each) for key, each in value.items())
        return [_json_of(each, items[n] if n < len(items) else None) for n, each in numbers]
    present = like if isinstance(like, Mapping) else {}
    kinds = {str(key): key for key in present}
    are_numbers = _has_numbers(present, value)
    pairs = []
    for text, each in value.items():
        key = kinds.get(str(text), int(text) if are_numbers else text)
        pairs.append((key, _json_of(each, present.get(key))))
    is_counter = isinstance(like, Counter)
    if not is_counter and all(isinstance(key, str) and not key.startswith("!") for key, _ in pairs):
        return dict(pairs)
    encoded = [[tree.encode(key, str(key)), each] for key, each in pairs]
    return {"!counter" if is_counter else "!pairs": encoded}


def _is_list(value: _Branch, like: object) -> bool:
    """A folder without paths has the places in a list as text, too."""
    if isinstance(like, list | tuple):
        return all(str(key).isdecimal() for key in value)
    return bool(value) and all(isinstance(key, int) for key in value)


def _has_numbers(present: Mapping[Any, Any], value: _Branch) -> bool:
    """Whether all keys were integers, also those that are not present."""
    are_integers = all(type(key) is int for key in present)
    if not are_integers or not (present or isinstance(present, Counter)):
        return False
    return all(str(key).removeprefix("-").isdecimal() for key in value)
