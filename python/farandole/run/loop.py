# SPDX-License-Identifier: Apache-2.0
"""Waits for descriptors and calls what belongs to each."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable

_READ_BYTES = 1 << 16
_DRAIN_S = 5.0


class Loop:
    """Descriptors to read from, each with its function. Used by one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, file: int, call: Callable[[], None]) -> None:
        """Calls ``call`` whenever ``file`` can be read."""
        self._selector.register(file, selectors.EVENT_READ, call)

    def forget(self, file: int) -> None:
        """Stops watching ``file`` and closes it."""
        self._selector.unregister(file)
        os.close(file)

    def watch_stream(
        self, file: int, take: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        """Passes what comes from ``file`` to ``take``; at its end closes it and calls ``end``."""
        os.set_blocking(file, False)

        def read() -> None:
            try:
                data = os.read(file, _READ_BYTES)
            except BlockingIOError:
                return
            if data:
                take(data)
            else:
                self.forget(file)
                end()

        self.watch(file, read)

    def turn(self, timeout_s: float | None = None) -> bool:
        """Waits for descriptors and calls their functions; False if none could be read in time."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def drain(self) -> None:
        """Reads what is left, for a few seconds at most: programs left behind may go on writing."""
        deadline_s = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline_s and self.turn(0.0):
            pass
