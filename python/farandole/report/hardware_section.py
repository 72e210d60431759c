# SPDX-License-Identifier: Apache-2.0
"""Heat maps of the hardware over time."""

from __future__ import annotations

import html
from typing import Any

from farandole.pages.document import table
from farandole.report.figures import Figures
from farandole.report.plain_words import duration, quantity, time_span
from farandole.report.strip import scale, strip
from farandole.report.utilization import QUANTILES

_OPEN_ROWS = 40
"""Longer heat maps are folded."""


def hardware(figures: Figures) -> str:
    """A heat map for each kind of metric."""
    if not figures["hardware"]:
        return "<p>There are no system metrics.</p>"
    return (
        f"<p>{time_span(figures['columns'])} A column is the mean of "
        f"{duration(figures['columns']['column_s'])}. The more it stands out from the page, the "
        "higher is the value; what was not recorded is left blank. Numbers are those of the whole "
        "time.</p>"
        + _utilization(figures["utilization"])
        + "".join(_heat_map(group) for group in figures["hardware"])
    )


def _utilization(rows: list[dict[str, Any]]) -> str:
    """What SageMaker's report shows as box plots."""
    if not rows:
        return ""
    cells = [
        (html.escape(row["place"]), *(quantity(row[key], "%") for key in QUANTILES)) for row in rows
    ]
    heads = ("which", "least", *("median" if key == "p50" else key for key in [*QUANTILES][1:]))
    return f"<h3>Utilization</h3>{table(heads, cells)}"


def _heat_map(group: dict[str, Any]) -> str:
    unit = group["unit"]
    rows = [_row(row, unit, group["top"]) for row in group["rows"]]
    body = (
        f"<p>{scale(quantity(group['top'], unit))}</p>"
        f'<div class="strips">{table(("which", "over time", "mean", "p95", "highest"), rows)}</div>'
    )
    title = html.escape(group["title"])
    if len(rows) > _OPEN_ROWS:
        body = f"<details><summary>{len(rows)} rows</summary>{body}</details>"
    return f"<h3>{title}</h3>{body}"


def _row(row: dict[str, Any], unit: str, top: float) -> tuple[str, ...]:
    name = html.escape(row["place"])
    numbers = [quantity(row[key], unit) for key in ("mean", "p95", "max")]
    words = f"{name} over time: mean {numbers[0]}, highest {numbers[2]}"
    return (name, strip(row["columns"], top, words), *numbers)
