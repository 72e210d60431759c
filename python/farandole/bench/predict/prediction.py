# SPDX-License-Identifier: Apache-2.0
"""Efficiency at many numbers of ranks, with jitter of ranks and uncertainty of links."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farandole.bench.predict.layout import Layout, layout_of
from farandole.bench.predict.links import Links
from farandole.bench.predict.recorded_step import RecordedStep
from farandole.bench.predict.simulation import Options, simulate

DRAWS = 200
INTERVAL = (5, 95)  # percentiles
NORMAL = statistics.NormalDist()


@dataclass(frozen=True)
class Draw:
    """What one simulated step meets; the same draws are used for everything that is compared."""

    uniform: float
    """Where the slowest rank lies in the distribution of the slowest of all ranks."""
    within: float
    """From -1 to 1: how far the bandwidth is off, as a part of its spread."""
    between: float


@dataclass(frozen=True)
class Conditions:
    """What is predicted, but for the number of ranks."""

    step: RecordedStep
    links: Links
    ranks_per_host: int
    options: Options
    jitter: float
    """Standard deviation of log(step) of a rank."""


@dataclass(frozen=True)
class Prediction:
    """For one number of ranks."""

    layout: Layout
    step_ms: float
    """Median, as exposed_ms."""
    exposed_ms: float
    efficiency: float
    """Throughput over that of as many ranks without communication, median."""
    low: float
    """The 5th percentile of the efficiency."""
    high: float
    """The 95th."""


def draws_of(seed: int, count: int = DRAWS) -> list[Draw]:
    """The same for the same seed."""
    numbers = random.Random(seed)
    return [
        Draw(numbers.uniform(1e-9, 1 - 1e-9), numbers.uniform(-1, 1), numbers.uniform(-1, 1))
        for _ in range(count)
    ]


def slowest_of(ranks: int, jitter: float, uniform: float) -> float:
    """How much longer than the median the slowest of so many ranks computes.

    Ranks are independent and log-normal. The slowest of n is below x with the probability F(x)^n,
    so F^-1(u^(1/n)) has its distribution.
    """
    return math.exp(jitter * NORMAL.inv_cdf(uniform ** (1 / ranks))) if jitter else 1.0


def predict(conditions: Conditions, ranks: int, draws: Sequence[Draw]) -> Prediction:
    """One number of ranks."""
    layout = layout_of(ranks, conditions.ranks_per_host)
    within, between = conditions.links.within.spread, conditions.links.between.spread
    times = [
        simulate(
            conditions.step,
            layout,
            conditions.links.scaled(1 + within * draw.within, 1 + between * draw.between),
            conditions.options,
            slowest=slowest_of(ranks, conditions.jitter, draw.uniform),
        )
        for draw in draws
    ]
    alone = conditions.step.step_ms
    steps = sorted(1e3 * each.step_s for each in times)
    low, high = (alone / _percentile(steps, percent) for percent in (INTERVAL[1], INTERVAL[0]))
    median = statistics.median(steps)
    exposed = statistics.median(1e3 * each.exposed_s for each in times)
    return Prediction(layout, median, exposed, alone / median, low, high)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
