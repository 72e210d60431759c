# SPDX-License-Identifier: Apache-2.0
"""What each step of a rank consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farandole.profiler.system_metrics import Floats
from farandole.profiler.timeline import RankTimeline, Span

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
    spans = rank.spans()
    steps = [span for span in spans if span.category == "step" and span.whole("step") is not None]
    starts = np.array([span.start_us for span in steps])
    durations = np.array([span.duration_us for span in steps])
    parts: dict[str, Floats] = {part: np.zeros(len(steps)) for part in PARTS}
    own_parts: dict[str, Floats] = {part: np.zeros(len(steps)) for part in PARTS}
    before = np.zeros(len(steps))
    spans = [span for span in spans if span.category in PARTS]
    spans.sort(key=lambda span: (span.start_us, -span.duration_us))  # what lies within comes after
    owners = np.searchsorted(starts + durations, [span.start_us for span in spans], side="right")
    for span, own_us, owner in zip(spans, _own_us(spans), owners, strict=True):
        if owner < len(steps):
            parts[span.category][owner] += span.duration_us
            own_parts[span.category][owner] += own_us
            if span.category == "data" and span.start_us < starts[owner]:
                before[owner] += span.duration_us
    return RankSteps(
        rank=rank.rank,
        node=rank.node,
        numbers=np.array([span.whole("step") for span in steps], dtype=np.int64),
        modes=np.array([str(span.args.get("mode", "TRAIN")) for span in steps], dtype=np.str_),
        starts_us=starts,
        durations_us=durations,
        loop_us=durations + before,
        parts_us=parts,
        own_us=own_parts,
    )


def _own_us(spans: list[Span]) -> list[float]:
    """Of each of these sorted spans: its time without that of spans that lie within."""
    own = [span.duration_us for span in spans]
    around: list[int] = []
    for i, span in enumerate(spans):
        while around and spans[around[-1]].end_us <= span.start_us:
            around.pop()
        if around:
            outer = around[-1]
            own[outer] -= min(span.end_us, spans[outer].end_us) - span.start_us
        around.append(i)
    return own
