# SPDX-License-Identifier: Apache-2.0
"""Small numbers for names, the same on every rank."""

from __future__ import annotations

import heapq
from collections import OrderedDict


class NameTable:
    """Gives names numbers, and takes back those that were not used for longest.

    Ranks that make the same calls in the same order give the same numbers. A number is a bit in the
    sets that ranks exchange, so they are reused.
    """

    def __init__(self, capacity: int) -> None:
        """Remember up to ``capacity`` names of which none is open."""
        self._capacity = capacity
        self._number_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._free: list[int] = []  # a heap
        self._closed: OrderedDict[int, None] = OrderedDict()  # longest ago first

    def find(self, name: str) -> int | None:
        """The number of a name that is remembered."""
        return self._number_of.get(name)

    def name_of(self, number: int) -> str:
        """The name of a number in use."""
        return self._name_of[number]

    def open(self, name: str) -> int:
        """The number of a name, which stays until close()."""
        number = self._number_of.get(name)
        if number is None:
            number = heapq.heappop(self._free) if self._free else len(self._name_of)
            self._number_of[name] = number
            self._name_of[number] = name
        self._closed.pop(number, None)
        return number

    def close(self, number: int) -> list[int]:
        """Nobody waits for it now; the numbers that are forgotten for it."""
        self._closed[number] = None
        forgotten = []
        while len(self._closed) > self._capacity:
            oldest, _ = self._closed.popitem(last=False)
            del self._number_of[self._name_of.pop(oldest)]
            heapq.heappush(self._free, oldest)
            forgotten.append(oldest)
        return forgotten
