# SPDX-License-Identifier: Apache-2.0
"""An operation under a name that is on its way, or done."""

from __future__ import annotations

from torch import Tensor


class Handle:
    """What the functions of NamedCollectives return; its wait() is there.

    Threads: any may read it; the thread that drives the rounds alone completes it.
    """

    __slots__ = ("done", "error", "memory", "name", "received_splits", "result")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self.error: BaseException | None = None
        self.result: list[Tensor] = []
        """One tensor for each of the request's."""
        self.memory: Tensor | None = None
        """That ranks share, if all of them wanted it; flat, as large as the result."""
        self.received_splits: list[int] = []
        """Of an all_to_all: rows that came from each rank."""

    def complete(self, error: BaseException | None = None) -> None:
        """Ends it, well or with ``error``."""
        self.error = error or self.error
        self.done = True
