# SPDX-License-Identifier: Apache-2.0
"""How NamedCollectives wait, warn and share calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The same on all ranks."""

    cycle_s: float = 0.001
    """How long the thread collects requests before a round that nobody waits for."""
    fusion_bytes: int = 128 << 20
    """Small tensors are reduced together in calls of at most this size."""
    capacity: int = 1024
    """How many names are remembered with their signatures."""
    stall_warning_s: float = 60.0
    """After which a warning names what ranks wait for; 0: never."""
    stall_shutdown_s: float = 0.0
    """After which waiting is an error; 0: never."""

    core: int | None = None
    """The core on which the thread runs; None: any that this process may use."""

    @property
    def heartbeat_s(self) -> float:
        """How long a rank that waits for nothing stays away."""
        limits = [limit for limit in (self.stall_warning_s, self.stall_shutdown_s) if limit > 0]
        return min([5.0, *(limit / 4 for limit in limits)])
