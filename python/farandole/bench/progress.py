# SPDX-License-Identifier: Apache-2.0
"""How far a long run is: a line on standard error, at most every few seconds."""

from __future__ import annotations

import sys
import time

PATIENCE_S = 5.0


class Progress:
    """Counts what is done of ``total``. Silent where ``shown`` is false and in short runs."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total, self._shown = total, shown
        self._done = 0
        self._begin_s = self._latest_s = time.monotonic()

    def begin(self, what: str) -> None:
        """Says, if nothing was said for a while, what comes now and how long the rest may take."""
        now_s = time.monotonic()
        if self._shown and now_s - self._latest_s >= PATIENCE_S:
            self._latest_s = now_s
            left = ""
            if self._done:
                per_one_s = (now_s - self._begin_s) / self._done
                left = f", about {per_one_s * (self._total - self._done):.0f} s left"
            text = f"farandole bench: {self._done + 1} of {self._total}: {what}{left}"
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """One more is done."""
        self._done += 1
