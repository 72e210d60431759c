# SPDX-License-Identifier: Apache-2.0
"""Runs the lanes in interleaved rounds and makes a row of results of each lane and size."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from farandole.bench.rounds import interleaved, percentile

from benchmarks.collectives.lanes import LANES, Lane, commands_of
from benchmarks.collectives.operations import Operation
from benchmarks.harness.ranks import Answer, Ranks, UnavailableError
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import say

FEWEST_ITERATIONS, MOST_ITERATIONS = 5, 20_000


@dataclass
class Plan:
    """How much is measured."""

    operations: list[Operation]
    ranks: list[int]
    sizes: list[int] | None  # None: each operation's own
    rounds: int
    seconds: float  # that one lane measures in one round


@dataclass
class Cell:
    """What one lane measured for one size: times of all rounds and ranks, in microseconds."""

    lane: Lane
    operation: Operation
    ranks: int
    size: int
    warmup: int = 2
    iterations: int = FEWEST_ITERATIONS
    times_us: list[float] = field(default_factory=list)
    round_medians_us: list[float] = field(default_factory=list)
    cannot: str | None = None  # why the lane lacks this operation


def measure(plan: Plan) -> Iterator[list[Row]]:
    """Rows by ranks and operation; raises RuntimeError if a lane fails or is wrong."""
    for ranks in plan.ranks:
        with ExitStack() as running:
            processes = start_all(running, ranks)
            for operation in plan.operations:
                rows: list[Row] = []
                for size in sizes_of(plan, operation, ranks):
                    measured = measure_size(plan, processes, operation, ranks, size)
                    say(progress_line(measured))
                    rows += measured
                yield rows


def sizes_of(plan: Plan, operation: Operation, ranks: int) -> list[int]:
    """Sizes in whole blocks; only one where an operation moves nothing."""
    sizes = operation.sizes() if plan.sizes is None else plan.sizes
    return list(dict.fromkeys(operation.fitting(size, ranks) for size in sizes))


def start_all(running: ExitStack, ranks: int) -> dict[str, Ranks]:
    """Starts every process set that this machine can run."""
    processes = {}
    for process in dict.fromkeys(lane.process for lane in LANES.values()):
        try:
            started = Ranks(process, ranks, commands_of(process))
            processes[process] = running.enter_context(started)
        except UnavailableError as reason:
            say(f"without {process}: {reason}")
    return processes


def measure_size(
    plan: Plan, processes: dict[str, Ranks], operation: Operation, ranks: int, size: int
) -> list[Row]:
    """One row a lane."""
    lanes = [each for each in LANES.values() if each.process in processes and each.has(operation)]
    cells = [Cell(lane, operation, ranks, size) for lane in lanes]
    for cell in cells:
        calibrate(plan, cell, processes[cell.lane.process])
    able = [cell for cell in cells if cell.cannot is None]
    for cells_of_round in interleaved(able, plan.rounds):
        for cell in cells_of_round:
            pooled = ask(cell, processes[cell.lane.process])
            cell.times_us += pooled
            cell.round_medians_us.append(statistics.median(pooled))
    return [make_row(cell) for cell in cells]


def calibrate(plan: Plan, cell: Cell, processes: Ranks) -> None:
    """Sets the iterations that fill the lane's time; touches all its memory on the way."""
    times_us = ask(cell, processes)
    if cell.cannot is None:
        call_us = statistics.median(times_us) * cell.operation.messages(cell.size)
        wanted = int(plan.seconds * 1e6 / call_us)
        cell.iterations = max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, wanted))
        cell.warmup = max(2, cell.iterations // 10)


def ask(cell: Cell, processes: Ranks) -> list[float]:
    """The times of one measurement, in microseconds; none if the lane cannot."""
    operation, size = cell.operation, cell.size
    question = f"{cell.lane.name} {operation.name} {size} {operation.pieces(size)}"
    answers = processes.ask(f"{question} {cell.warmup} {cell.iterations}")
    cell.cannot = next((answer["cannot"] for answer in answers if "cannot" in answer), None)
    if cell.cannot is not None:
        return []
    verify(cell, answers)
    nanoseconds = 1e3 * operation.messages(size)
    of_ranks = [answer["periods_ns"] for answer in answers]
    if operation.rooted:  # a rank that runs ahead shows how far it may, not how long it takes
        of_ranks = [max(of_ranks, key=statistics.median)]
    return [period / nanoseconds for periods in of_ranks for period in periods]


def verify(cell: Cell, answers: list[Answer]) -> None:
    """Raises RuntimeError unless every element was right and no rank left a barrier too early."""
    what = f"{cell.lane.name}, {cell.operation.name} of {cell.size} bytes"
    if wrong := sum(answer["wrong"] for answer in answers):
        raise RuntimeError(f"{what}: {wrong} wrong elements")
    if cell.operation.name != "barrier":
        return
    for entered, left in zip(
        zip(*(answer["entered_ns"] for answer in answers), strict=True),
        zip(*(answer["left_ns"] for answer in answers), strict=True),
        strict=True,
    ):
        if min(left) < max(entered):
            raise RuntimeError(f"{what}: a rank left before another had entered")


def make_row(cell: Cell) -> Row:
    """Results of one lane, operation and size; see docs/benchmarks.md."""
    row = {
        "operation": cell.operation.name,
        "lane": cell.lane.name,
        "ranks": cell.ranks,
        "bytes": cell.size,
    }
    if cell.cannot is not None:
        return {**row, "cannot": cell.cannot}
    median = statistics.median(cell.times_us)
    return {
        **row,
        "median_us": round(median, 3),
        "p95_us": round(percentile(cell.times_us, 95), 3),
        "mean_us": round(statistics.fmean(cell.times_us), 3),
        "busbw_gb_s": round(cell.size / median / 1e3 * cell.operation.bus(cell.ranks), 4),
        "iterations": cell.iterations * len(cell.round_medians_us),
        "round_medians_us": [round(value, 3) for value in cell.round_medians_us],
        "verified": True,
    }


def progress_line(rows: list[Row]) -> str:
    """The size just measured, in short."""
    cells = [
        f"{row['lane']} {row['median_us']:.1f}" if "median_us" in row else f"{row['lane']} n/a"
        for row in rows
    ]
    first = rows[0]
    place = f"{first['operation']}, {first['ranks']} ranks, {first['bytes']} B"
    return f"{place}, median us: {', '.join(cells)}"
