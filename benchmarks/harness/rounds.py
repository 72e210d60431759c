# SPDX-License-Identifier: Apache-2.0
"""Rounds in which all lanes take turns, and what they say together."""

import math
import statistics
from collections.abc import Sequence

from farandole.bench.rounds import percentile

from benchmarks.harness.results import Row


def say(line: str) -> None:
    """Prints progress at once."""
    print(line, flush=True)


def uncertainty(quartiles: Sequence[float], count: int) -> float:
    """Two standard errors of the median of `count` values, as if they were normal."""
    low, high = quartiles
    return 2 * 1.2533 * (high - low) / 1.349 / math.sqrt(count)


def median_and_p95(times_ms: list[float]) -> Row:
    """Fields of a row."""
    median, p95 = statistics.median(times_ms), percentile(times_ms, 95)
    return {"median_ms": round(median, 4), "p95_ms": round(p95, 4)}


def compared(own_ms: list[float], baseline_ms: list[float]) -> Row:
    """Fields of a row: against what the baseline took in the same round."""
    pairs = [*zip(own_ms, baseline_ms, strict=True)]
    ratios = [own / baseline for own, baseline in pairs]
    return {
        "ratio": round(statistics.median(ratios), 5),
        "ratio_quartiles": [round(percentile(ratios, each), 5) for each in (25, 75)],
        "exposed_ms": round(statistics.median(own - baseline for own, baseline in pairs), 4),
    }
