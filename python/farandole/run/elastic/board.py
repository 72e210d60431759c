# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of farandole.elastic_meeting: torch's store, which it serves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from torch._C._distributed_c10d import TCPStore


class StoreBoard:
    """Serves a store in which workers ask and groups form. Used by one thread."""

    def __init__(self, host: str) -> None:
        """Take the name or address at which workers reach this host."""
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.address = f"{host}:{self._store.port}"
        self.host, self.port = host, self._store.port
        self._asks = 0

    def asks(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The newest question of each of these workers; empty if nobody has asked since."""
        count = self._store.add("asks", 0)
        if count == self._asks:
            return {}
        self._asks = count
        keys = {number: f"ask/{number}" for number in numbers}
        return {
            number: json.loads(self._store.get(key))
            for number, key in keys.items()
            if self._store.check([key])
        }

    def answer(self, number: int, serial: int, answer: dict[str, Any]) -> None:
        """Answer a question."""
        self._store.set(f"answer/{number}/{serial}", json.dumps(answer))

    def tell(self, news: int, result: int) -> None:
        """Say that hosts have changed."""
        self._store.set("news", json.dumps([news, result]))
