# SPDX-License-Identifier: Apache-2.0
"""What each step of a rank consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farandole.profiler.spans import MISSING
from farandole.profiler.system_metrics import Floats
from farandole.profiler.timeline import RankTimeline

PARTS = ("data", "forward", "backward", "communication", "optimizer", "checkpoint", "gc")
"""Categories of spans whose time is added up by step."""
COMPUTE = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class RankSteps:
    """Of each step of a rank: number, mode, and microseconds, in the order of time."""

    rank: int
    node: str
    numbers: npt.NDArray[np.int64]
    modes: npt.NDArray[np.str_]
    starts_us: Floats
    durations_us: Floats
    """Of the step alone."""
    loop_us: Floats
    """With the wait for its batch, where that comes before the step."""
    parts_us: dict[str, Floats]
    """Of each of PARTS, the wait before the step included."""
    own_us: dict[str, Floats]
    """The same without spans of PARTS that lie within: what is left of the loop is none of them."""

    @property
    def compute_us(self) -> Floats:
        """Time of the rank's own work: it does not wait for other ranks in it."""
        forward, backward, optimizer = (self.parts_us[part] for part in COMPUTE)
        return forward + backward + optimizer

    def of_mode(self, mode: str) -> npt.NDArray[np.bool_]:
        """Which steps are of this mode."""
        return np.array(self.modes == mode, dtype=np.bool_)


def steps_of(rank: RankTimeline) -> RankSteps:
    """Spans belong to the step that ends next after they have begun."""
    steps = rank.spans("step")
    steps = steps.where(steps.whole("step") != MISSING)
    found = [rank.spans(part) for part in PARTS]
    starts = np.concatenate([each.starts_us for each in found])
    durations = np.concatenate([each.durations_us for each in found])
    order = np.lexsort((-durations, starts))  # what lies within comes after
    part_of = np.repeat(np.arange(len(PARTS)), [len(each) for each in found])[order]
    starts, durations = starts[order], durations[order]
    owners = np.searchsorted(steps.ends_us, starts, side="right")
    is_data = part_of == PARTS.index("data")

    def by_step(times: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
        sums = np.bincount(owners[chosen], weights=times[chosen], minlength=len(steps) + 1)
        return sums[:-1].astype(np.float64)  # without what comes after the last step

    own = _own_us(starts, durations)
    is_before = is_data & (starts < np.append(steps.starts_us, -np.inf)[owners])
    modes = steps.values("mode")
    return RankSteps(
        rank=rank.rank,
        node=rank.node,
        numbers=steps.whole("step"),
        modes=np.array(["TRAIN" if mode is None else str(mode) for mode in modes], dtype=np.str_),
        starts_us=steps.starts_us,
        durations_us=steps.durations_us,
        loop_us=steps.durations_us + by_step(durations, is_before),
        parts_us={part: by_step(durations, part_of == i) for i, part in enumerate(PARTS)},
        own_us={part: by_step(own, part_of == i) for i, part in enumerate(PARTS)},
    )


def _own_us(starts: Floats, durations: Floats) -> Floats:
    """Of each of these sorted spans: its time without that of spans that lie within."""
    own = durations.tolist()
    around: list[tuple[int, float]] = []  # place and end
    ends = (starts + durations).tolist()
    for place, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        while around and around[-1][1] <= start:
            around.pop()
        if around:
            outer, outer_end = around[-1]
            own[outer] -= min(end, outer_end) - start
        around.append((place, end))
    return np.array(own)
