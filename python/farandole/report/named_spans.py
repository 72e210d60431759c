# SPDX-License-Identifier: Apache-2.0
"""What ranks did, added up by name: collectives, annotations, checkpoints, waits for batches."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import plain, quantile
from farandole.profiler.system_metrics import Floats


def by_name(profile: Profile, category: str) -> list[dict[str, Any]]:
    """Of all ranks together, what took longest first."""
    named: dict[str, list[Floats]] = defaultdict(list)
    for rank in profile.timeline.ranks():
        for name, spans in rank.spans(category).by_name().items():
            named[name].append(spans.durations_us)
    rows = [{"name": name, **_times(np.concatenate(each))} for name, each in named.items()]
    return sorted(rows, key=lambda row: -row["total_s"])


def collectives_of(profile: Profile) -> list[dict[str, Any]]:
    """With bytes, and the time in which a rank waited for late ones."""
    rows = by_name(profile, "collective")
    for row in rows:
        row["bytes"] = row["waiting_s"] = 0.0
    places = {row["name"]: row for row in rows}
    for rank in profile.timeline.ranks():
        for name, spans in rank.spans("collective").by_name().items():
            row = places[name]
            row["bytes"] += float(np.nansum(spans.number("bytes")))
            row["waiting_s"] += float(np.nansum(spans.number("waiting_us"))) / 1e6
    return rows


def data_loading_of(profile: Profile) -> list[dict[str, Any]]:
    """The waits of each rank for batches of a DataLoader."""
    loops_s = {rank.rank: float(rank.loop_us.sum()) / 1e6 for rank in profile.steps()}
    rows = []
    for rank in profile.timeline.ranks():
        spans = rank.spans("data")
        if spans:
            row = {"rank": rank.rank, **_times(spans.durations_us)}
            loop_s = loops_s.get(rank.rank)
            row["percent"] = plain(100 * row["total_s"] / loop_s) if loop_s else None
            row["workers"] = spans.largest("num_workers")
            rows.append(row)
    return rows


def _times(durations_us: Floats) -> dict[str, Any]:
    ms = durations_us / 1e3
    return {
        "count": len(ms),
        "total_s": plain(float(ms.sum()) / 1e3),
        "mean_ms": plain(float(ms.mean())),
        "p95_ms": quantile(ms, 0.95),
        "max_ms": plain(float(ms.max())),
    }
