# SPDX-License-Identifier: Apache-2.0
"""How a rank times what it does together with others. Needs no torch."""

import resource
import time
from collections.abc import Callable
from typing import Any


def cpu_s() -> float:
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(
    call: Callable[[], Any], barrier: Callable[[], Any], times: int, *, in_turn: bool = False
) -> dict[str, Any]:
    """The seconds of each call, which begins after a barrier; the CPU seconds of all together.

    `in_turn`: only the first one does, as what the calls leave to the next one counts.
    """
    seconds, begin_cpu = [], cpu_s()
    for time_number in range(times):
        if not in_turn or time_number == 0:
            barrier()
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds, "cpu_s": cpu_s() - begin_cpu}
