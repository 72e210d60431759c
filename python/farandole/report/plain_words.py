# SPDX-License-Identifier: Apache-2.0
"""Numbers, times and sizes as the page shows them."""

from __future__ import annotations

import html
import time
from typing import Any


def clock_time(seconds: float | None) -> str:
    """Of seconds since 1970, in UTC."""
    if seconds is None:
        return "unknown"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # of a damaged file
        return f"{seconds:g} s after 1970"


def time_span(columns: dict[str, Any]) -> str:
    """Of what is shown over time."""
    end_s = columns["start_s"] + columns["count"] * columns["column_s"]
    return f"From {clock_time(columns['start_s'])} on the left to {clock_time(end_s)} on the right."


def duration(seconds: float | None) -> str:
    """As hours, minutes and seconds where there are many."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.4g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"


def milliseconds(value: float) -> str:
    """Of a part of a step."""
    return f"{value:.2f} ms" if value < 100 else f"{value:,.0f} ms"


def percent(value: float | None) -> str:
    """With its sign."""
    return "unknown" if value is None else f"{value:.3g} %"


def size(value: float) -> str:
    """Bytes, by powers of 1000 as in network and disk rates."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def quantity(value: float, unit: str) -> str:
    """A value of the hardware."""
    if unit == "bytes/s":
        return f"{size(value)}/s"
    return f"{value:,.3g} {unit}".strip() if value < 999.5 else f"{value:,.0f} {unit}".strip()


def sentence(text: str) -> str:
    """As HTML, with a capital letter."""
    return html.escape(text[:1].upper() + text[1:])


def number(value: Any) -> str:
    """Of a figure; empty where there is none."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
