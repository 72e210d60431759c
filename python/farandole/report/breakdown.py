# SPDX-License-Identifier: Apache-2.0
"""What the steps of each rank consist of."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.profiler.common_steps import CommonSteps
from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain
from farandole.profiler.system_metrics import Floats

PARTS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "waiting": "exposed communication: waiting for late ranks",
    "transfer": "exposed communication: transfer",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "gc": "garbage collection",
    "other": "other",
}
"""Of a step, with their titles; together they are the step with the wait for its batch."""
_RECORDED = ("data", "forward", "backward", "optimizer", "checkpoint", "gc")


def breakdown_of(profile: Profile) -> list[dict[str, Any]]:
    """Means of the steps of training that all ranks have recorded, but for the first.

    In each step the rank that comes last waits for no other: what it waits is the transfer.
    """
    steps = CommonSteps(profile.steps())
    if not len(steps):
        return []
    exposed = _own(steps, "communication")
    parts = {"transfer": np.broadcast_to(exposed.min(axis=0), exposed.shape)}
    parts["waiting"] = exposed - parts["transfer"]
    parts |= {part: _own(steps, part) for part in _RECORDED}
    loop = steps.of(lambda rank: rank.loop_us)
    parts["other"] = np.maximum(0, loop - sum(parts.values()))
    rows = []
    for i, rank in enumerate(steps.ranks):
        step_us = float(loop[i].mean())
        means = {part: float(parts[part][i].mean()) for part in PARTS}
        rows.append(
            {
                "rank": rank.rank,
                "node": rank.node,
                "steps": len(steps),
                "step_ms": plain(step_us / 1e3),
                "steps_per_s": plain(1e6 / max(1.0, step_us)),
                "parts_ms": {part: round(us / 1e3, 4) for part, us in means.items()},
                "parts_percent": {
                    part: round(100 * us / max(1.0, step_us), 2) for part, us in means.items()
                },
            }
        )
    return rows


def _own(steps: CommonSteps, part: str) -> Floats:
    """Microseconds of a recorded part, without what lies within it."""
    return steps.of(lambda rank: rank.own_us[part])
