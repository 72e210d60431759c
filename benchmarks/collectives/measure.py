# SPDX-License-Identifier: Apache-2.0
"""Runs the lanes in interleaved rounds and makes a row of results of each lane and size."""

import statistics
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from lanes import LANES, Lane, Ranks, UnavailableError

SIZES = [4**power for power in range(1, 14)]  # 4 B to 64 MiB
FEWEST_ITERATIONS, MOST_ITERATIONS = 5, 20_000

Row = dict[str, Any]


@dataclass
class Plan:
    """How much is measured."""

    ranks: list[int]
    sizes: list[int]
    rounds: int
    seconds: float  # that one lane measures in one round


@dataclass
class Cell:
    """What one lane measured for one size: periods of all rounds and ranks, in microseconds."""

    lane: Lane
    warmup: int = 2
    iterations: int = FEWEST_ITERATIONS
    periods_us: list[float] = field(default_factory=list)
    round_medians_us: list[float] = field(default_factory=list)


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """All rows; raises RuntimeError if a lane fails or sums wrongly."""
    rows: list[Row] = []
    for ranks in plan.ranks:
        with ExitStack() as running:
            processes = start_all(running, ranks, say)
            for size in plan.sizes:
                rows += measure_size(plan, processes, ranks, size)
                say(progress_line(rows, ranks, size))
    return rows


def start_all(running: ExitStack, ranks: int, say: Callable[[str], None]) -> dict[str, Ranks]:
    """Starts every process set that this machine can run."""
    processes = {}
    for process in dict.fromkeys(lane.process for lane in LANES):
        try:
            processes[process] = running.enter_context(closing(Ranks(process, ranks)))
        except UnavailableError as reason:
            say(f"without {process}: {reason}")
    return processes


def measure_size(plan: Plan, processes: dict[str, Ranks], ranks: int, size: int) -> list[Row]:
    """One row a lane. Lanes take turns within a round; each round starts with another lane."""
    cells = [Cell(lane) for lane in LANES if lane.process in processes]
    for cell in cells:
        calibrate(plan, cell, processes[cell.lane.process], size)
    for turn in range(plan.rounds):
        first = turn % len(cells)
        for cell in cells[first:] + cells[:first]:
            pooled = ask(cell, processes[cell.lane.process], size)
            cell.periods_us += pooled
            cell.round_medians_us.append(statistics.median(pooled))
    return [make_row(cell, ranks, size) for cell in cells]


def calibrate(plan: Plan, cell: Cell, processes: Ranks, size: int) -> None:
    """Sets the iterations that fill the lane's time; touches all its memory on the way."""
    period_us = statistics.median(ask(cell, processes, size))
    wanted = int(plan.seconds * 1e6 / period_us)
    cell.iterations = max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, wanted))
    cell.warmup = max(2, cell.iterations // 10)


def ask(cell: Cell, processes: Ranks, size: int) -> list[float]:
    """The periods of one measurement on all ranks, in microseconds."""
    answers = processes.ask(cell.lane, size, cell.warmup, cell.iterations)
    wrong = sum(answer["wrong"] for answer in answers)
    if wrong:
        raise RuntimeError(f"{cell.lane.name}: {wrong} wrong elements in all-reduces of {size} B")
    return [period / 1e3 for answer in answers for period in answer["periods_ns"]]


def make_row(cell: Cell, ranks: int, size: int) -> Row:
    """Bus bandwidth as nccl-tests defines it: bytes / time * 2 (n - 1) / n."""
    median = statistics.median(cell.periods_us)
    return {
        "lane": cell.lane.name,
        "ranks": ranks,
        "bytes": size,
        "median_us": round(median, 3),
        "p95_us": round(percentile(cell.periods_us, 95), 3),
        "mean_us": round(statistics.fmean(cell.periods_us), 3),
        "busbw_gb_s": round(size / median / 1e3 * 2 * (ranks - 1) / ranks, 4),
        "iterations": cell.iterations * len(cell.round_medians_us),
        "round_medians_us": [round(value, 3) for value in cell.round_medians_us],
        "verified": True,
    }


def percentile(values: Iterable[float], percent: int) -> float:
    """The smallest value that at least `percent` % of all do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * percent // 100) - 1]


def progress_line(rows: list[Row], ranks: int, size: int) -> str:
    """The size just measured, in short."""
    done = [row for row in rows if row["ranks"] == ranks and row["bytes"] == size]
    cells = ", ".join(f"{row['lane']} {row['median_us']:.1f}" for row in done)
    return f"{ranks} ranks, {size} B, median us: {cells}"
