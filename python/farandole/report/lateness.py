# SPDX-License-Identifier: Apache-2.0
"""Which rank came last, how often, and how long the others waited."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain

_CATEGORIES = ("communication", "collective")
_OF_BACKWARD = "bucket_reduction"
"""A collective whose wait is that of the exposed communication."""


def lateness_of(profile: Profile) -> list[dict[str, Any]]:
    """Of each rank that others name as the last; who kept the others longest comes first.

    Every other rank names it, so what they name is divided by their number.
    """
    ranks = profile.timeline.ranks()
    others = max(1, len(ranks) - 1)
    times: dict[int, int] = defaultdict(int)
    waited_us: dict[int, float] = defaultdict(float)
    for rank in ranks:
        for spans in map(rank.spans, _CATEGORIES):
            spans = spans.where(spans.names != _OF_BACKWARD)
            waiting_us = spans.number("waiting_us")
            waiting_us = np.where(np.isnan(waiting_us), spans.durations_us, waiting_us)
            counts = spans.sums_by("latest_rank", np.ones(len(spans)))
            for latest, us in spans.sums_by("latest_rank", waiting_us).items():
                if latest not in (-1, rank.rank):
                    times[latest] += int(counts[latest])
                    waited_us[latest] += us
    return [
        {
            "rank": latest,
            "times": round(times[latest] / others),
            "percent": plain(100 * times[latest] / sum(times.values())),
            "waited_s": plain(waited_us[latest] / others / 1e6),
        }
        for latest in sorted(times, key=lambda each: -waited_us[each])
    ]
