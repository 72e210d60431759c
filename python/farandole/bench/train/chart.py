# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, which scale to the width of a phone. Pure: no files, no libraries."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from farandole.pages.scale import round_up, short_number

WIDTH, HEIGHT = 360, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 26, 36
# Okabe and Ito's colours, which stay apart for colour-blind eyes.
COLOURS = {
    "ours": "#0072B2",
    "zero": "#009E73",
    "torch": "#D55E00",
    "limit": "#777777",
    "single": "#CC79A7",
}
DASHES = {"limit": "4 3", "single": "2 3"}


@dataclass(frozen=True)
class Line:
    """Points of one lane, and the middle half of each where it is known."""

    lane: str
    points: Sequence[tuple[float, float]]
    spans: Sequence[tuple[float, float, float]] = ()
    """x, low, high."""


def chart(title: str, unit: str, lines: Sequence[Line]) -> str:
    """An <svg>: ranks to the right, each at the same distance; from 0 upwards."""
    ranks = sorted({x for line in lines for x, _ in line.points})
    tops = [y for line in lines for _, y in line.points]
    tops += [high for line in lines for _, _, high in line.spans]
    top = round_up(max(tops, default=1.0) or 1.0)

    def across(x: float) -> float:
        if len(ranks) == 1:
            return (_LEFT + WIDTH - _RIGHT) / 2
        return _LEFT + 14 + ranks.index(x) * (WIDTH - _LEFT - _RIGHT - 28) / (len(ranks) - 1)

    def down(y: float) -> float:
        return HEIGHT - _BOTTOM - y / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{_LEFT}" y="14" class="title">{html.escape(title)}, {html.escape(unit)}</text>',
    ]
    for step in range(5):
        value = top * step / 4
        y = down(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                     'class="grid"/>')  # fmt: skip
        parts.append(
            f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{short_number(value)}</text>'
        )
    for count in ranks:
        parts.append(f'<text x="{across(count):.1f}" y="{HEIGHT - 20}" text-anchor="middle">'
                     f"{count:g}</text>")  # fmt: skip
    parts.append(f'<text x="{(_LEFT + WIDTH) / 2}" y="{HEIGHT - 5}" text-anchor="middle">'
                 "ranks</text>")  # fmt: skip
    for line in lines:
        parts += _drawn(line, across, down)
    return "\n".join([*parts, "</svg>"])


def _drawn(line: Line, across: object, down: object) -> list[str]:
    """The spans, the line and its points."""
    assert callable(across)
    assert callable(down)
    colour = COLOURS[line.lane]
    dashes = f' stroke-dasharray="{DASHES[line.lane]}"' if line.lane in DASHES else ""
    places = [(across(x), down(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    found = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>']
    for x, low, high in line.spans:
        found.append(f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{down(low):.1f}" '
                     f'y2="{down(high):.1f}" stroke="{colour}" stroke-width="5" '
                     'stroke-opacity="0.35"/>')  # fmt: skip
    found += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
    return found
