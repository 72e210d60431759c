# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of farandole.elastic_meeting: torch's store, which it serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farandole import job_secret
from farandole.elastic_records import Records, is_count
from farandole.served_store import serve_store


class StoreBoard:
    """Serves a store in which workers ask and groups form. Used by one thread."""

    def __init__(self, host: str) -> None:
        """Take the name or address at which workers reach this host."""
        self._store = serve_store(host)
        self._records = Records(self._store, job_secret.of_environment())
        self.address = f"{host}:{self._store.port}"
        self.host, self.port = host, self._store.port
        self._asks = 0

    def asks(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The newest question of each of these workers; empty if nobody has asked since."""
        count = self._store.add("asks", 0)
        if count == self._asks:
            return {}
        self._asks = count
        asked = {number: self._records.read(f"ask/{number}", _ask) for number in numbers}
        return {number: ask for number, ask in asked.items() if ask is not None}

    def answer(self, number: int, serial: int, answer: dict[str, Any]) -> None:
        """Answer a question."""
        self._records.write(f"answer/{number}/{serial}", answer)

    def tell(self, news: int, result: int) -> None:
        """Say that hosts have changed."""
        self._records.write("news", [news, result])


def _ask(found: Any) -> dict[str, Any] | None:
    """A question, as farandole.elastic_meeting writes it; None: it is another value."""
    if not isinstance(found, dict) or found.keys() != {"serial", "commits", "sync"}:
        return None
    numbers = is_count(found["serial"]) and is_count(found["commits"])
    return found if numbers and isinstance(found["sync"], bool) else None
