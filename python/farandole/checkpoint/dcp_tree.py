# SPDX-License-Identifier: Apache-2.0
"""Nested values of torch.distributed.checkpoint in the JSON of our checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from farandole.checkpoint import tree
from farandole.checkpoint.dcp_folder import DcpFolder


class EncodedTree:
    """Makes JSON of keys of a folder, and collects which tensors are meant by which new key."""

    def __init__(self, folder: DcpFolder) -> None:
        """Of a folder."""
        self._folder = folder
        self.tensors: dict[str, str] = {}
        """By the key in the JSON: that in the folder."""

    def of(self, keys: Sequence[str], start: str, name: str) -> Any:
        """What is at ``keys``, which begin with ``start``.

        Args:
            keys: All that belongs to a value.
            start: With the dot, or the key itself if it is the only one.
            name: What keys of tensors in the JSON begin with.
        """
        if list(keys) == [start]:
            return self._leaf(start, name)
        root: dict[str | int, Any] = {}
        for key in keys:
            rest = key.removeprefix(start)
            *outer, last = self._path_within(key, rest)
            at = root
            for each in outer:
                at = at.setdefault(each, {})
            at[last] = self._leaf(key, f"{name}/{rest.replace('.', '/')}")
        return _with_lists(root)

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


def _with_lists(value: Any) -> Any:
    """The same with lists where keys are numbers."""
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, int) for key in value):
        return [_with_lists(each) for _, each in sorted(value.items())]
    return {key: _with_lists(each) for key, each in value.items()}
