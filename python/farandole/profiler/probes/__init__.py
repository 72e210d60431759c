# SPDX-License-Identifier: Apache-2.0
"""What a host can be asked for: cores, memory, disks, network, GPUs. One class each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Reading(NamedTuple):
    """A value as SageMaker names it; ``dimension`` is empty where SageMaker has none."""

    type: str
    name: str
    dimension: str
    value: float


class Probe(Protocol):
    """Something that is read at every tick. Threads: one at a time."""

    def read(self, elapsed_s: float) -> Iterator[Reading]:
        """Values of the ``elapsed_s`` seconds since the last call."""
