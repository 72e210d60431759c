# SPDX-License-Identifier: Apache-2.0
"""Bars of parts, as SVG in the width of the window: each part has a pattern and its number."""

from __future__ import annotations

import html
from typing import Any

from farandole.report.breakdown import PARTS

_LABEL, _BAR, _GAP = 20, 30, 14
_LEAST_SHARE = 7
"""Percent of the width in which a number fits."""

# Okabe and Ito's colours, which stay apart for colour-blind eyes, and lines that differ without.
_PATTERNS = {
    "data": ("#E69F00", '<path d="M0 8L8 0"/>'),
    "forward": ("#56B4E9", ""),
    "backward": ("#0072B2", '<path d="M0 4H8" stroke="#fff"/>'),
    "waiting": ("#D55E00", '<path d="M0 0L8 8M0 8L8 0"/>'),
    "transfer": ("#F0E442", '<path d="M4 0V8"/>'),
    "optimizer": ("#009E73", '<circle cx="4" cy="4" r="1.5" fill="#fff" stroke="none"/>'),
    "checkpoint": ("#CC79A7", '<path d="M0 0L8 8"/>'),
    "gc": ("#999999", '<path d="M0 4H8M4 0V8"/>'),
    "other": ("#FFFFFF", '<circle cx="4" cy="4" r="1" fill="#444" stroke="none"/>'),
}


def patterns() -> str:
    """Once in a page."""
    found = "".join(
        f'<pattern id="{part}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{colour}"/><g stroke="#000">{marks}</g></pattern>'
        for part, (colour, marks) in _PATTERNS.items()
    )
    return f'<svg class="patterns" aria-hidden="true"><defs>{found}</defs></svg>'


def legend(parts: list[str]) -> str:
    """What the patterns mean."""
    items = "".join(
        f'<li><svg aria-hidden="true"><rect class="part" width="100%" height="100%" '
        f'fill="url(#{part})"/></svg>{html.escape(PARTS[part])}</li>'
        for part in parts
    )
    return f'<ul class="legend">{items}</ul>'


def bars(rows: list[dict[str, Any]], labels: list[str]) -> str:
    """A bar for each row, as long as its ``parts_ms`` together; the longest fills the width."""
    longest = max(sum(row["parts_ms"].values()) for row in rows) or 1.0
    pieces = []
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        top = i * (_LABEL + _BAR + _GAP)
        pieces.append(f'<text class="bar" x="0" y="{top + 14}">{html.escape(label)}</text>')
        left = 0.0
        for part, ms in row["parts_ms"].items():
            width = 100 * ms / longest
            if width <= 0:
                continue
            share = row["parts_percent"][part]
            pieces.append(
                f'<rect class="part" x="{left:.3f}%" y="{top + _LABEL}" width="{width:.3f}%" '
                f'height="{_BAR}" fill="url(#{part})"><title>{html.escape(PARTS[part])}: '
                f"{ms:.2f} ms, {share:.1f} %</title></rect>"
            )
            if width >= _LEAST_SHARE:
                pieces.append(
                    f'<text class="share" x="{left + width / 2:.3f}%" y="{top + _LABEL + 20}">'
                    f"{share:.0f} %</text>"
                )
            left += width
    height = len(rows) * (_LABEL + _BAR + _GAP)
    return (
        f'<svg role="img" aria-label="parts of a step; the table below has the numbers" '
        f'style="height:{height}px">{"".join(pieces)}</svg>'
    )
