# SPDX-License-Identifier: Apache-2.0
"""What diagnosis and events cost: C++ all_reduce with them and without, in turns.

    python -m benchmarks.diagnosis.run            # a minute
    python -m benchmarks.diagnosis.run --quick    # does it work?

Without them runs a twin of farandole_comm that `make build` makes for this alone. Prints a table,
and writes diagnosis.jsonl (one line a row) into build/benchmarks.
"""

import argparse
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from farandole.bench.sizes import KIB, MIB, size_text

from benchmarks.collectives.lanes import LANES, Lane
from benchmarks.collectives.measure import Cell, Plan, ask, calibrate
from benchmarks.collectives.operations import OPERATIONS
from benchmarks.harness import tables
from benchmarks.harness.ranks import Ranks, commands_of_program
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import say, uncertainty
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.tables import time_text

WITH, WITHOUT = "farandole_bench_collectives", "farandole_bench_without_diagnosis"
MEMORY = {name: lane for name, lane in LANES.items() if lane.process == "cpp"}
ALL_REDUCE = OPERATIONS["all_reduce"]
RANKS = 2
SIZES = [KIB, 4 * KIB, 64 * KIB, MIB]
MOST_PERCENT, FROM_BYTES = 3, 4 * KIB  # the target


@dataclass
class Pair:
    """What both sides took for one size and kind of memory; one entry a round."""

    with_us: list[float] = field(default_factory=list)
    without_us: list[float] = field(default_factory=list)

    def percents(self) -> list[float]:
        """How much longer it took with diagnosis, by round."""
        return [
            (ours / bare - 1) * 100
            for ours, bare in zip(self.with_us, self.without_us, strict=True)
        ]


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of the table."""
    starts, rounds = (1, 2) if arguments.quick else (arguments.starts, arguments.rounds)
    plan = Plan([ALL_REDUCE], [RANKS], arguments.sizes, rounds, arguments.seconds)
    pairs = {(lane, size): Pair() for lane in MEMORY for size in arguments.sizes}
    for start in range(starts):
        measure(plan, pairs)
        say(f"start {start + 1} of {starts} is done")
    yield [make_row(lane, size, pair) for (lane, size), pair in pairs.items()]


def measure(plan: Plan, pairs: dict[tuple[str, int], Pair]) -> None:
    """All rounds on fresh processes: where theirs and their memory's place is matters too."""
    with ExitStack() as running:
        sides = {
            name: running.enter_context(Ranks(name, RANKS, commands_of_program(name)))
            for name in (WITH, WITHOUT)
        }
        for (lane, size), pair in pairs.items():
            measure_pair(plan, sides, MEMORY[lane], size, pair)


def measure_pair(plan: Plan, sides: dict[str, Ranks], lane: Lane, size: int, pair: Pair) -> None:
    """Both sides right after each other, first one first, then the other."""
    cells = {name: Cell(lane, ALL_REDUCE, RANKS, size) for name in sides}
    for name, cell in cells.items():
        for _ in range(2):  # the first time pages are touched
            calibrate(plan, cell, sides[name])
    for turn in range(plan.rounds):
        medians = {
            name: statistics.median(ask(cells[name], sides[name]))
            for name in ((WITH, WITHOUT) if turn % 2 else (WITHOUT, WITH))
        }
        pair.with_us.append(medians[WITH])
        pair.without_us.append(medians[WITHOUT])


def make_row(lane: str, size: int, pair: Pair) -> Row:
    """Medians over rounds; the cost is the median of the rounds' own costs."""
    percents = sorted(pair.percents())
    quartiles = statistics.quantiles(percents, method="inclusive")
    return {
        "lane": lane,
        "ranks": RANKS,
        "bytes": size,
        "with_us": round(statistics.median(pair.with_us), 3),
        "without_us": round(statistics.median(pair.without_us), 3),
        "cost_percent": round(quartiles[1], 2),
        "cost_percent_quartiles": [round(quartiles[0], 2), round(quartiles[2], 2)],
        "rounds": len(percents),
    }


HALF = "{:+.1f} to {:+.1f} %"
COLUMNS: list[tables.Column] = [
    ("memory", lambda row: row["lane"].removeprefix("farandole_")),
    ("bytes", lambda row: size_text(row["bytes"])),
    ("with", lambda row: time_text(row["with_us"])),
    ("without", lambda row: time_text(row["without_us"])),
    ("cost", tables.field("cost_percent", "+.1f", " %")),
    ("half of the rounds", lambda row: HALF.format(*row["cost_percent_quartiles"])),
]


def table(rows: list[Row]) -> str:
    """One line a row, then what became of the target."""
    head = f"all_reduce in C++, {RANKS} ranks, with and without diagnosis and events"
    target = f"target: <= {MOST_PERCENT} % from {size_text(FROM_BYTES)}: {verdict(rows)}"
    return f"{tables.titled(head, rows, COLUMNS)}\n{target}"


def verdict(rows: list[Row]) -> str:
    """What became of the target; nothing is said where the rounds differ too much to tell."""
    big = [row for row in rows if row["bytes"] >= FROM_BYTES]
    if not big:
        return "not measured"
    doubt = max(uncertainty(row["cost_percent_quartiles"], row["rounds"]) for row in big)
    if doubt > MOST_PERCENT:
        return f"cannot be told, medians are uncertain by {doubt:.0f} %; run it on a quiet machine"
    worst = max(row["cost_percent"] for row in big)
    return f"{worst:.1f} %, {'reached' if worst <= MOST_PERCENT else 'missed'}"


if __name__ == "__main__":
    parser = new_parser(__doc__, "one start, two rounds")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--starts", type=int, default=6, help="of fresh processes")
    parser.add_argument("--rounds", type=int, default=20, help="of a start and size")
    parser.add_argument("--seconds", type=float, default=0.03, help="of one side and round")
    arguments = parse(parser)
    Report("diagnosis.jsonl", table).make(arguments, measured(arguments))
