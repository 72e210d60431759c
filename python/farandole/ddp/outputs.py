# SPDX-License-Identifier: Apache-2.0
"""The tensors in whatever a module returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from torch import Tensor, nn

_LIMIT = 2048  # values that are looked at in one output, each twice if it may have parts
_WIDTH = 256  # values of one container among them
_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})
_SEQUENCES: tuple[type[Any], ...] = (tuple, list, set, frozenset)
_CLOSED = (nn.Module, ModuleType, type)
_STORED = (GetSetDescriptorType, MemberDescriptorType)


def find_tensors(output: object) -> list[Tensor]:
    """Find the tensors in tuples, lists, sets, dicts and attributes of objects, outermost first.

    The search reads memory and never calls code of the values' classes, which could have effects.
    It is bounded: in a large output it leaves out what is far inside. DistributedDataParallel does
    not depend on finding all: a backward that comes to no output begins at the first parameter.
    """
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting: deque[object] = deque()
    parts: list[Any] = [output]
    left = _LIMIT
    while True:
        for part in parts:
            kind = type(part)  # not isinstance(), which asks the value for its class
            if issubclass(kind, Tensor):
                found.append(part)
            elif kind not in _LEAVES and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
        if not waiting or left <= 0:
            return found
        parts = _parts(waiting.popleft())
        left -= 1 + len(parts)


def _parts(value: Any) -> list[Any]:
    """The first values in a container, or the attributes of an object.

    Each list is made by one call, within which no other thread can change the container.
    """
    kind = type(value)
    if issubclass(kind, dict):
        return list(islice(dict.values(value), _WIDTH))
    for base in _SEQUENCES:
        if issubclass(kind, base):
            return list(islice(base.__iter__(value), _WIDTH))
    return [] if issubclass(kind, _CLOSED) else list(islice(_attributes(value, kind), _WIDTH))


def _attributes(value: object, kind: type) -> Iterator[object]:
    """The values in ``__dict__`` and in ``__slots__``, without properties."""
    for each in kind.__mro__:
        members = each.__dict__
        descriptor: Any = members.get("__dict__")
        if type(descriptor) in _STORED:
            own = descriptor.__get__(value, kind)
            if type(own) is dict:
                yield from list(islice(own.values(), _WIDTH))
        if "__slots__" in members:
            for member in members.values():
                if type(member) is MemberDescriptorType:
                    try:
                        yield member.__get__(value, kind)
                    except AttributeError:  # it was not set
                        continue
