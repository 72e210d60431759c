# SPDX-License-Identifier: Apache-2.0
"""Steps: their parts by rank, and their times."""

from __future__ import annotations

import html
from typing import Any

from farandole.pages.document import table
from farandole.report.bars import bars, legend
from farandole.report.breakdown import PARTS
from farandole.report.figures import Figures
from farandole.report.plain_words import clock_time, milliseconds, time_span
from farandole.report.time_chart import step_time_chart


def breakdown(figures: Figures) -> str:
    """Bars, and a table with the numbers."""
    rows = figures["steps"]
    if not rows:
        return "<p>No step was recorded by all ranks, or only the first.</p>"
    labels = [
        f"rank {row['rank']} on {row['node']}: {milliseconds(row['step_ms'])} a step, "
        f"{row['steps_per_s']:g} steps/s"
        for row in rows
    ]
    return (
        f"<p>Means of {rows[0]['steps']:,} steps of training that all ranks have recorded. The "
        "rank that comes last in a step waits for no other: what it waits is the transfer.</p>"
        f"{legend(_used(rows))}{bars(rows, labels)}{_numbers(rows)}"
    )


def _numbers(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            f"rank {row['rank']}",
            *(
                f"{milliseconds(row['parts_ms'][part])}<br>{row['parts_percent'][part]:.1f} %"
                for part in PARTS
            ),
        ]
        for row in rows
    ]
    return table(("", *PARTS), lines)


def _used(rows: list[dict[str, Any]]) -> list[str]:
    return [part for part in PARTS if any(row["parts_ms"][part] for row in rows)]


def step_times(figures: Figures) -> str:
    """The chart, statistics of each rank, and outliers one by one."""
    times = figures["step_times"]
    if not times["ranks"]:
        return "<p>No step was recorded.</p>"
    heads = ("rank", "steps", "shortest ms", "median ms", "p95 ms", "p99 ms", "longest ms")
    rows = [
        (f"rank {rank['rank']}", f"{rank['steps']:,}", *_statistics(rank["ms"]))
        for rank in times["ranks"]
    ]
    return (
        f"<p>{time_span(times['columns'])} The thick line is the mean of the rank in the middle, "
        "the thin broken line the longest step of any rank, and x an outlier.</p>"
        f"{step_time_chart(times)}{table(heads, rows)}{_outliers(times)}"
    )


def _statistics(ms: dict[str, float]) -> list[str]:
    return [f"{ms[name]:g}" for name in ("min", "p50", "p95", "p99", "max")]


def _outliers(times: dict[str, Any]) -> str:
    if not times["outliers"]:
        return "<p>There are no outliers: no step is longer than the mean of its rank by three " \
               "standard deviations.</p>"  # fmt: skip
    rows = [
        (
            f"step {each['step']}",
            f"rank {each['rank']}",
            html.escape(each["mode"]),
            clock_time(each["time_s"]),
            f"{each['ms']:g}",
            html.escape(each["grew"]),
        )
        for each in times["longest"]
    ]
    return (
        f"<p>Outliers: {times['outliers']:,} steps are longer than the mean of their rank by three "
        f"standard deviations. The longest {len(rows)}:</p>"
        + table(("step", "rank", "mode", "time", "ms", "what grew most"), rows)
    )
