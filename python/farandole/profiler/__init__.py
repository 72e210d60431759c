# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training goes: what hardware and ranks did, and rules that judge it."""

from __future__ import annotations

from farandole.profiler.growing_files import Problem
from farandole.profiler.monitor import SystemMonitor
from farandole.profiler.profile import Profile
from farandole.profiler.timeline import Span

__all__ = [
    "Problem",
    "Profile",
    "Span",
    "SystemMonitor",
]
