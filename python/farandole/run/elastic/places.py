# SPDX-License-Identifier: Apache-2.0
"""How many ranks each host takes now: what it has, less the places whose ranks have failed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping


class Places:
    """A place is lost when its rank fails, and comes back after a cooldown if there is one.

    The first cooldown of a host takes the shortest time, each later one twice as long as the one
    before, up to the longest, and a random part of the shortest more.
    """

    def __init__(
        self,
        cooldown_s: tuple[float, float] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cooldown_s, self._clock = cooldown_s, clock
        self._back_s: dict[str, list[float]] = {}  # by host: when each lost place comes back
        self._failures: dict[str, int] = {}

    def lose(self, host: str) -> None:
        """A rank on this host has failed."""
        back_s = float("inf")
        if self._cooldown_s is not None:
            least, most = self._cooldown_s
            delay_s = least * 2 ** self._failures.get(host, 0) + random.uniform(0, least)
            back_s = self._clock() + min(delay_s, most)
        self._failures[host] = self._failures.get(host, 0) + 1
        self._back_s.setdefault(host, []).append(back_s)

    def of(self, hosts: Mapping[str, int]) -> dict[str, int]:
        """Places on each host."""
        now_s = self._clock()
        for host, times in self._back_s.items():
            self._back_s[host] = [each for each in times if each > now_s]
        return {
            host: max(0, slots - len(self._back_s.get(host, []))) for host, slots in hosts.items()
        }

    def some_come_back(self, hosts: Mapping[str, int]) -> bool:
        """Whether a lost place of these hosts is used again some time."""
        return any(each != float("inf") for host in hosts for each in self._back_s.get(host, []))
