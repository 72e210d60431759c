# SPDX-License-Identifier: Apache-2.0
"""Links within a host and between hosts, by the alpha-beta model.

A message of S bytes takes ``latency + S / bandwidth`` (Hockney, "The communication challenge for
MPP", Parallel Computing 20, 1994).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

GB = 1e9
US = 1e-6


class Algorithm(Enum):
    """How collectives travel; farandole.bench.predict.collectives has the formulas."""

    STRIPES = "stripes"
    """Farandole's own: shared memory within a host, direct exchanges between hosts."""
    RING = "ring"
    """NCCL's ring."""
    TREE = "tree"
    """NCCL's double binary tree; a ring for what has no tree, and within one host."""
    NCCL = "nccl"
    """The faster of the two for each size."""


@dataclass(frozen=True)
class Link:
    """One level: what a rank has to the others of its host, or a host to the other hosts."""

    latency_s: float
    """Of one round of messages; "alpha"."""
    bytes_per_s: float
    """In each direction, as attained by large messages; 1 / "beta"."""
    spread: float = 0.0
    """Relative uncertainty of the bandwidth: half the width of the interval around it."""
    message_s: float = 0.0
    """CPU time of each further message of the same round."""
    cpu_s_per_byte: float = 0.0
    """CPU time of a host for each byte that it sends or receives."""
    source: str = ""
    """Where the numbers are from."""

    def scaled(self, factor: float) -> Link:
        """With another bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s * factor)


@dataclass(frozen=True)
class Links:
    """Both levels, and how they are used."""

    within: Link
    between: Link
    algorithm: Algorithm
    launch_s: float = 0.0
    """Of each collective, before anything is sent: a kernel's launch, a thread that wakes up."""
    cores_per_host: float | None = None
    """Cores that computation fills, so that communication takes time from it; None: it has cores
    or engines of its own."""
    busy_factor: float = 1.0
    """How much longer a collective takes while ranks compute: threads wait for a core."""

    def scaled(self, within: float, between: float) -> Links:
        """With other bandwidths."""
        return replace(
            self, within=self.within.scaled(within), between=self.between.scaled(between)
        )
