# SPDX-License-Identifier: Apache-2.0
"""GPUs that wait for cores."""

from __future__ import annotations

from dataclasses import dataclass

from farandole.profiler.profile import Profile
from farandole.profiler.rules.bottleneck import BottleneckRule
from farandole.profiler.rules.rule import RuleReport


@dataclass(frozen=True, kw_only=True)
class CPUBottleneck(BottleneckRule):
    """Fires if GPUs have too often been idle while a core was busy."""

    cpu_threshold: float = 90
    """Percent of utilization above which a core is busy."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge moments of all hosts."""
        return self._judge(
            profile,
            "CPUUtilization",
            self.cpu_threshold,
            "a core was busy",
            "use more workers of the DataLoader, do less on the CPU in each step, or take a "
            "machine with more cores for each GPU.",
        )
