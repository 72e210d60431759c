# SPDX-License-Identifier: Apache-2.0
"""Rounds in which all lanes take turns, and percentiles of what they took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


def interleaved(things: Sequence[Thing], rounds: int) -> Iterator[list[Thing]]:
    """All of them a round, which take turns; each round begins with another."""
    for turn in range(rounds):
        first = turn % max(1, len(things))
        yield [*things[first:], *things[:first]]


def percentile(values: Iterable[float], percent: int) -> float:
    """The smallest value that at least `percent` % of all do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * percent // 100) - 1]
