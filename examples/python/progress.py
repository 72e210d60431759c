# SPDX-License-Identifier: Apache-2.0
"""How fast a training is, and how long it will still take."""

from __future__ import annotations

import time
from datetime import timedelta


class Progress:
    """Of steps since it was made, all that lies between them included."""

    def __init__(self, step: int, steps: int) -> None:
        """`step`: the last one that was taken before. `steps`: those of the whole training."""
        self.first, self.steps, self.start = step, steps, time.perf_counter()

    def per_second(self, step: int, items: int) -> float:
        """Of the `items` of each step, until `step`."""
        return (step - self.first) * items / (time.perf_counter() - self.start)

    def left(self, step: int) -> str:
        """After `step`, as 0:12:30; "unknown" before the first one."""
        if step == self.first:
            return "unknown"
        seconds = (self.steps - step) / self.per_second(step, 1)
        return str(timedelta(seconds=round(seconds)))
