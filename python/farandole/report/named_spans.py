# SPDX-License-Identifier: Apache-2.0
"""What ranks did, added up by name: collectives, annotations, checkpoints, waits for batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain, quantile
from farandole.profiler.timeline import Span


def by_name(profile: Profile, category: str) -> list[dict[str, Any]]:
    """Of all ranks together, what took longest first."""
    named: dict[str, list[Span]] = {}
    for rank in profile.timeline.ranks():
        for span in rank.spans(category):
            named.setdefault(span.name, []).append(span)
    rows = [{"name": name, **_times(spans)} for name, spans in named.items()]
    return sorted(rows, key=lambda row: -row["total_s"])


def collectives_of(profile: Profile) -> list[dict[str, Any]]:
    """With bytes, and the time in which a rank waited for late ones."""
    rows = by_name(profile, "collective")
    for row in rows:
        row["bytes"] = row["waiting_s"] = 0.0
    places = {row["name"]: row for row in rows}
    for rank in profile.timeline.ranks():
        for span in rank.spans("collective"):
            row = places[span.name]
            row["bytes"] += span.number("bytes") or 0.0
            row["waiting_s"] += (span.number("waiting_us") or 0.0) / 1e6
    return rows


def data_loading_of(profile: Profile) -> list[dict[str, Any]]:
    """The waits of each rank for batches of a DataLoader."""
    loops_s = {rank.rank: float(rank.loop_us.sum()) / 1e6 for rank in profile.steps()}
    rows = []
    for rank in profile.timeline.ranks():
        spans = rank.spans("data")
        if spans:
            row = {"rank": rank.rank, **_times(spans)}
            loop_s = loops_s.get(rank.rank)
            row["percent"] = plain(100 * row["total_s"] / loop_s) if loop_s else None
            counts = [span.whole("num_workers") for span in spans]
            row["workers"] = max((each for each in counts if each is not None), default=None)
            rows.append(row)
    return rows


def _times(spans: Iterable[Span]) -> dict[str, Any]:
    ms = np.array([span.duration_us for span in spans]) / 1e3
    return {
        "count": len(ms),
        "total_s": plain(float(ms.sum()) / 1e3),
        "mean_ms": plain(float(ms.mean())),
        "p95_ms": quantile(ms, 0.95),
        "max_ms": plain(float(ms.max())),
    }
