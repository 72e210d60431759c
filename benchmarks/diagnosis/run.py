# SPDX-License-Identifier: Apache-2.0
"""What diagnosis and events cost: C++ all_reduce with them and without, in turns.

    python benchmarks/diagnosis/run.py            # a minute
    python benchmarks/diagnosis/run.py --quick    # does it work?

Without them runs a twin of farandole_comm that `make build` makes for this alone. Prints a table,
and writes diagnosis.jsonl (one line a row) into benchmarks/results.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCHMARKS / "collectives"))

import machine  # noqa: E402
from lanes import LANES, Lane, Ranks, program_commands  # noqa: E402
from measure import Cell, Plan, Row, ask, calibrate, uncertainty  # noqa: E402
from operations import KIB, MIB, OPERATIONS  # noqa: E402
from report import columns, size_text, time_text  # noqa: E402

WITH, WITHOUT = "farandole_bench_collectives", "farandole_bench_without_diagnosis"
MEMORY = {lane.name: lane for lane in LANES if lane.process == "cpp"}
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


def main() -> None:
    """Measures, writes, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--starts", type=int, default=6, help="of fresh processes")
    parser.add_argument("--rounds", type=int, default=20, help="of a start and size")
    parser.add_argument("--seconds", type=float, default=0.03, help="of one side and round")
    parser.add_argument("--quick", action="store_true", help="one start, two rounds")
    parser.add_argument("--output", type=Path, help="folder (with --quick none)")
    arguments = parser.parse_args()
    starts, rounds = (1, 2) if arguments.quick else (arguments.starts, arguments.rounds)
    plan = Plan([ALL_REDUCE], [RANKS], arguments.sizes, rounds, arguments.seconds)
    pairs = {(lane, size): Pair() for lane in MEMORY for size in arguments.sizes}
    for start in range(starts):
        measure(plan, pairs)
        print(f"start {start + 1} of {starts} is done", flush=True)
    where = machine.describe()
    rows = [{**make_row(lane, size, pair), **where} for (lane, size), pair in pairs.items()]
    output = arguments.output or (None if arguments.quick else BENCHMARKS / "results")
    if output:
        output.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (output / "diagnosis.jsonl").write_text(text)
    print(f"\n{table(rows)}")


def measure(plan: Plan, pairs: dict[tuple[str, int], Pair]) -> None:
    """All rounds on fresh processes: where theirs and their memory's place is matters too."""
    with ExitStack() as running:
        sides = {
            name: running.enter_context(
                closing(Ranks(name, RANKS, partial(program_commands, name)))
            )
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


def table(rows: list[Row]) -> str:
    """One line a row, then what became of the target."""
    lines = [["memory", "bytes", "with", "without", "cost", "half of the rounds"]]
    for row in rows:
        low, high = row["cost_percent_quartiles"]
        lines.append(
            [
                row["lane"].removeprefix("farandole_"),
                size_text(row["bytes"]),
                time_text(row["with_us"]),
                time_text(row["without_us"]),
                f"{row['cost_percent']:+.1f} %",
                f"{low:+.1f} to {high:+.1f} %",
            ]
        )
    head = f"all_reduce in C++, {RANKS} ranks, with and without diagnosis and events\n"
    target = f"\ntarget: <= {MOST_PERCENT} % from {size_text(FROM_BYTES)}: {verdict(rows)}"
    return head + columns(lines) + target


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
    main()
