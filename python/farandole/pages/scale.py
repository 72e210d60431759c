# SPDX-License-Identifier: Apache-2.0
"""The numbers at the axis of a chart."""

from __future__ import annotations


def short_number(value: float) -> str:
    """Short, without exponents."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def round_up(value: float) -> float:
    """The next 1, 2, 2.5, 4, 5 or 10 times a power of ten; ``value`` is above 0."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * each for each in (1, 2, 2.5, 4, 5, 8, 10) if power * each >= value)
