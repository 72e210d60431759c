# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface over Farandole, beside Farandole's own and torch over gloo, in turns.

    python -m benchmarks.horovod.run            # about four minutes
    python -m benchmarks.horovod.run --quick    # tiny models: does it work?

Two ranks reduce tensors and take whole training steps. Prints tables and the targets, and writes
horovod.jsonl (one line a row) into build/benchmarks. docs/benchmarks.md explains the method.
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from farandole.bench.rounds import interleaved, percentile
from farandole.bench.sizes import KIB, MIB, size_text

from benchmarks.ddp.rounds import Times
from benchmarks.harness import tables
from benchmarks.harness.ranks import Answer, Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, median_and_p95, say, uncertainty
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.tables import time_text
from benchmarks.harness.targets import Target, verdict
from benchmarks.horovod.lanes import ALL_REDUCES, BASELINE, RANKS, STEPS, TASKS
from benchmarks.horovod.summary import FILE

SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB]
CALLS = {4 * KIB: 200, 64 * KIB: 100, MIB: 20, 16 * MIB: 5}  # of a lane in a round
STEPS_IN_ROUND = {"mlp": 5, "resnet18": 1, "transformer": 2}
MOST = 1.05  # the target: a step with hvd.DistributedOptimizer over one of Farandole's DDP


@dataclass
class LaneTimes(Times):
    """With the time of the processor, milliseconds: one entry a round, the mean of the ranks."""

    cpu_ms: list[float] = field(default_factory=list)

    def add(self, answers: list[Answer]) -> None:
        """One round."""
        ran = [answer for answer in answers if answer["begin_ns"]]
        super().add(ran)
        self.cpu_ms.append(statistics.mean(answer["cpu_ns"] for answer in ran) / 1e6)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "tiny models, two rounds")
    parser.add_argument("--rounds", type=int, default=30, help="30")
    return parse(parser)


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    rounds = 2 if arguments.quick else arguments.rounds
    start = commands_of_module("horovod.rank", arguments.size)
    with Ranks("horovod", RANKS, start) as ranks:
        yield all_reduces(ranks, rounds)
        for task in TASKS:
            yield steps(ranks, task, rounds)


def all_reduces(ranks: Ranks, rounds: int) -> list[Row]:
    """A row for each size and lane."""
    rows: list[Row] = []
    for size in SIZES:
        times: dict[str, list[float]] = {lane: [] for lane in ALL_REDUCES}
        cpu: dict[str, list[float]] = {lane: [] for lane in ALL_REDUCES}
        for turn, lanes in enumerate(interleaved([*ALL_REDUCES], rounds + 1)):
            for lane in lanes:
                answers = ranks.ask(f"all_reduce {lane} {size} {CALLS[size]}")
                if any(answer["wrong"] for answer in answers):
                    raise RuntimeError(f"{lane} of {size} bytes: wrong elements")
                if turn:  # the first one warms up
                    times[lane] += [ns / 1e3 for answer in answers for ns in answer["ns"]]
                    cpu[lane].append(statistics.mean(each["cpu_ns"] for each in answers) / 1e3)
        say(f"all_reduce of {size_text(size)} is done")
        for lane, own in times.items():
            rows.append(
                {
                    "part": "all_reduce",
                    "lane": lane,
                    "ranks": RANKS,
                    "bytes": size,
                    "median_us": round(statistics.median(own), 2),
                    "quartiles_us": [round(percentile(own, each), 2) for each in (25, 75)],
                    "cpu_us": round(statistics.median(cpu[lane]), 2),
                    "calls": len(own) // RANKS,
                }
            )
    return rows


def steps(ranks: Ranks, task: str, rounds: int) -> list[Row]:
    """A row for each lane."""
    times = {lane: LaneTimes() for lane in STEPS}
    for lane in STEPS:
        if any(answer["wrong"] for answer in ranks.ask(f"verify {lane} {task}")):
            raise RuntimeError(f"{task}, {lane}: other parameters than those of one process")
    for turn, lanes in enumerate(interleaved([*STEPS], rounds)):
        for lane in lanes:
            times[lane].add(ranks.ask(f"steps {lane} {task} {STEPS_IN_ROUND[task]}"))
        if turn in {0, rounds // 2, rounds - 1}:
            last = (f"{lane} {own.steps_ms[-1]:.1f} ms" for lane, own in times.items())
            say(f"{task}, round {turn + 1} of {rounds}: {', '.join(last)}")
    return [row_of(task, lane, times) for lane in STEPS]


def row_of(task: str, lane: str, times: dict[str, LaneTimes]) -> Row:
    """Of a lane; ratios are those of the same round."""
    own, baseline = times[lane], times[BASELINE]
    row: Row = {"part": "steps", "task": task, "lane": lane, "ranks": 1 if lane == "alone" else 2}
    row |= {"steps": len(own.steps_ms), **median_and_p95(own.steps_ms)}
    row["quartiles_ms"] = [round(percentile(own.steps_ms, each), 4) for each in (25, 75)]
    row["cpu_ms"] = round(statistics.median(own.cpu_ms), 4)
    if lane != BASELINE:
        row |= compared(own.steps_ms, baseline.steps_ms)
        row["cpu_ratio"] = compared(own.cpu_ms, baseline.cpu_ms)["ratio"]
    return row


ALL_REDUCE_COLUMNS: list[tables.Column] = [
    ("", lambda row: ALL_REDUCES[row["lane"]]),
    ("bytes", lambda row: size_text(row["bytes"])),
    ("median", lambda row: time_text(row["median_us"])),
    ("quartiles", lambda row: " to ".join(map(time_text, row["quartiles_us"]))),
    ("processor", lambda row: time_text(row["cpu_us"])),
]
STEP_COLUMNS: list[tables.Column] = [
    ("", lambda row: STEPS[row["lane"]]),
    *tables.MEDIAN_AND_P95,
    ("x DDP", tables.field("ratio", ".3f")),
    ("quartiles", tables.quartiles()),
    ("processor ms", tables.field("cpu_ms", ".2f")),
    ("x DDP", tables.field("cpu_ratio", ".3f")),
]


def table(rows: list[Row]) -> str:
    """One line a row."""
    if rows[0]["part"] == "all_reduce":
        return tables.titled(f"averages over {RANKS} ranks", rows, ALL_REDUCE_COLUMNS)
    return tables.titled(f"a step of {TASKS[rows[0]['task']]}", rows, STEP_COLUMNS)


def targets(rows: list[Row]) -> list[Target]:
    """Of steps with hvd.DistributedOptimizer."""
    lines = []
    for row in rows:
        if row["part"] == "steps" and row["lane"] == "horovod":
            doubt = uncertainty(row["ratio_quartiles"], row["steps"])
            state = f"{row['ratio']:.3f}x, {verdict(row['ratio'], MOST)}, uncertain by {doubt:.3f}"
            state += f"; of the processor's time {row['cpu_ratio']:.3f}x"
            lines.append((f"{TASKS[row['task']]}: step <= {MOST}x Farandole's DDP", state))
    return lines


def place_of(row: Row) -> tuple[str, int]:
    """Where rows of this part and task stand."""
    return row["part"], [*TASKS].index(row["task"]) if "task" in row else 0


if __name__ == "__main__":
    given = parse_arguments()
    Report(FILE, table, targets, place_of).make(given, measured(given))
