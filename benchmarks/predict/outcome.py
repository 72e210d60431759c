# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and whether predictions are as near as they should be."""

from typing import Any

from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.targets import Target, verdict

MOST_ERROR = 0.10

STEPS: list[tables.Column] = [
    ("", tables.field("model")),
    ("alone ms", tables.field("alone_ms", ".1f")),
    ("predicted ms", tables.field("predicted_ms", ".1f")),
    *tables.MEDIAN_AND_P95,
    ("error", lambda row: f"{100 * row['error']:+.1f} %"),
]


def place_of(row: Row) -> Any:
    """What is measured together."""
    return row["rate"] != "1gbit", row["rate"], row["hosts"]


def table(rows: list[Row]) -> str:
    """One line a model."""
    first = rows[0]
    title = f"training steps, {first['hosts']} hosts x 1 rank, {first['rate']}"
    return tables.titled(title, rows, STEPS)


def targets(rows: list[Row]) -> list[Target]:
    """Of the prediction that is the farthest off."""
    if not rows:
        return []
    worst = max(abs(row["error"]) for row in rows)
    within = sum(abs(row["error"]) <= MOST_ERROR for row in rows)
    state = f"{within} of {len(rows)}, worst {100 * worst:.1f} %, {verdict(worst, MOST_ERROR)}"
    return [(f"predicted step within {100 * MOST_ERROR:.0f} % of the measured one", state)]
