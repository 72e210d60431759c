# SPDX-License-Identifier: Apache-2.0
"""Which rank came last, how often, and how long the others waited."""

from __future__ import annotations

from typing import Any

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
    times: dict[int, int] = {}
    waited_us: dict[int, float] = {}
    named = 0
    for rank in ranks:
        for span in (each for category in _CATEGORIES for each in rank.spans(category)):
            latest = span.whole("latest_rank")
            if latest is None or latest in (-1, rank.rank) or span.name == _OF_BACKWARD:
                continue
            waiting_us = span.number("waiting_us")
            waiting_us = span.duration_us if waiting_us is None else waiting_us
            times[latest] = times.get(latest, 0) + 1
            waited_us[latest] = waited_us.get(latest, 0.0) + waiting_us
            named += 1
    return [
        {
            "rank": latest,
            "times": round(times[latest] / others),
            "percent": plain(100 * times[latest] / named),
            "waited_s": plain(waited_us[latest] / others / 1e6),
        }
        for latest in sorted(times, key=lambda each: -waited_us[each])
    ]
