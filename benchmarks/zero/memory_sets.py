# SPDX-License-Identifier: Apache-2.0
"""Which lanes fit into memory together."""

import re
from pathlib import Path

from operations import MIB
from zero_lanes import LANES

USABLE = 0.9  # of what is available at the start
REST_BYTES = 512 * MIB  # of a rank: libraries, activations, buffers of the groups


def available_bytes() -> int:
    """Of the machine, as the kernel estimates it."""
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise RuntimeError("the kernel does not tell MemAvailable")
    return int(found[1]) * 1024


def needed_bytes(lanes: list[str], parameters: int, ranks: int) -> float:
    """Of all ranks. What a lane needs for a moment while it is made is less than its state."""
    steady = sum(LANES[lane].steady_bytes(parameters, ranks) for lane in lanes)
    return ranks * (steady + REST_BYTES)


def sets_of(lanes: list[str], parameters: int, ranks: int, available: int) -> list[list[str]]:
    """Lanes in the order given, each in the first set with room; "local" is in every set."""
    base = [lane for lane in lanes if lane == "local"]
    sets: list[list[str]] = []
    for lane in (lane for lane in lanes if lane != "local"):
        usable = USABLE * available
        fitting = (
            each for each in sets if needed_bytes([*each, lane], parameters, ranks) <= usable
        )
        found = next(fitting, None)
        if found is None:
            found = [*base]
            if (needed := needed_bytes([*base, lane], parameters, ranks)) > usable:
                text = f"{lane} on {ranks} ranks needs {needed / MIB:.0f} MiB of {usable / MIB:.0f}"
                raise RuntimeError(f"{text} that are available; take a smaller model or less ranks")
            sets.append(found)
        found.append(lane)
    return sets or [base]
