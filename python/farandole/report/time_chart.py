# SPDX-License-Identifier: Apache-2.0
"""Step times over time, as SVG in the width of the window."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from farandole.pages.scale import round_up, short_number

_HEIGHT, _TOP = 220, 24
_GRID = 4


def step_time_chart(times: dict[str, Any]) -> str:
    """The mean of the median rank, the longest of any rank, and a cross for each outlier."""
    ranks = times["ranks"]
    middle = _across([rank["mean"] for rank in ranks], statistics.median)
    longest = _across([rank["longest"] for rank in ranks], max)
    top = round_up(max((value for value in longest if value), default=1.0))
    pieces = [*_grid(), _line(middle, top, 'stroke-width="2.5"')]
    pieces.append(_line(longest, top, 'stroke-width="1" stroke-dasharray="2 2" opacity=".7"'))
    pieces += [_cross(each, times["columns"], top) for each in times["longest"]]
    return (
        f'<div class="timed">{_axis(top)}'
        f'<svg role="img" aria-label="step times over time" style="height:{_HEIGHT}px">'
        f"{''.join(pieces)}</svg></div>"
    )


def _across(rows: Sequence[Sequence[float | None]], choose: Any) -> list[float | None]:
    """One value for each column, of the rows that have one there."""
    columns = (
        [value for value in column if value is not None] for column in zip(*rows, strict=True)
    )
    return [choose(column) if column else None for column in columns]


def _axis(top: float) -> str:
    """Beside the chart, where no line crosses its numbers."""
    numbers = "".join(
        f'<text x="95%" y="{_down(step, _GRID) + 4:.1f}" text-anchor="end">'
        f"{short_number(top * step / _GRID)} ms</text>"
        for step in range(_GRID + 1)
    )
    return f'<svg class="axis" aria-hidden="true" style="height:{_HEIGHT}px">{numbers}</svg>'


def _grid() -> list[str]:
    heights = (_down(step, _GRID) for step in range(_GRID + 1))
    return [f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>' for y in heights]


def _line(values: Sequence[float | None], top: float, look: str) -> str:
    points = " ".join(
        f"{i + 0.5:g},{_down(value, top):.1f}"
        for i, value in enumerate(values)
        if value is not None
    )
    return (
        f'<svg viewBox="0 0 {len(values)} {_HEIGHT}" preserveAspectRatio="none" '
        f'height="{_HEIGHT}"><polyline points="{points}" {look}/></svg>'
    )


def _cross(outlier: dict[str, Any], columns: dict[str, Any], top: float) -> str:
    whole_s = columns["column_s"] * columns["count"]
    x = 100 * (outlier["time_s"] - columns["start_s"]) / whole_s
    return (
        f'<text text-anchor="middle" x="{x:.2f}%" y="{_down(outlier["ms"], top) + 4:.1f}">x'
        f"<title>step {outlier['step']} of rank {outlier['rank']}: {outlier['ms']:g} ms</title>"
        "</text>"
    )


def _down(value: float, top: float) -> float:
    return _HEIGHT - 4 - value / top * (_HEIGHT - _TOP)
