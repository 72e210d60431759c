# SPDX-License-Identifier: Apache-2.0
"""What the driver knows of a rank's process, and how they talk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol


class Process(Protocol):
    """Of a worker."""

    def poll(self) -> int | None:
        """Its exit status, as subprocess has it; None while it runs."""

    def kill(self) -> None:
        """Kills it and what it started."""


class Board(Protocol):
    """Where workers ask; see farandole.elastic_meeting."""

    def asks(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The newest question of each of these workers that has one."""

    def answer(self, number: int, serial: int, answer: dict[str, Any]) -> None:
        """Answers a question."""

    def tell(self, news: int, result: int) -> None:
        """Says that hosts have changed."""


@dataclass
class Worker:
    """A process that runs."""

    number: int
    host: str
    place: int
    """On its host: where its LOCAL_RANK begins."""
    process: Process
    generation: int = 0
    """Of which it is a member; 0: of none yet."""
    answered: int = 0
    """The serial number of its last question that was answered."""
    ask: dict[str, Any] | None = None
    """Its question that was not."""
    leaves_s: float | None = None
    """When it is killed if it has not ended; None: it has a place."""
