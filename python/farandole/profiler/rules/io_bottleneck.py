# SPDX-License-Identifier: Apache-2.0
"""GPUs that wait for disks."""

from __future__ import annotations

from dataclasses import dataclass

from farandole.profiler.profile import Profile
from farandole.profiler.rules.bottleneck import BottleneckRule
from farandole.profiler.rules.rule import RuleReport


@dataclass(frozen=True, kw_only=True)
class IOBottleneck(BottleneckRule):
    """Fires if GPUs have too often been idle while a core waited for a disk."""

    io_threshold: float = 50
    """Percent of a core's time above which it waits for disks."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge moments of all hosts."""
        return self._judge(
            profile,
            "I/OWaitPercentage",
            self.io_threshold,
            "a core waited for a disk",
            "read from a faster disk or from memory, in fewer and larger files, with more workers "
            "that prefetch.",
        )
