# SPDX-License-Identifier: Apache-2.0
"""Training steps: Farandole's DDP, torch's over gloo and no DDP at all, in interleaved rounds.

    python -m benchmarks.ddp.run                                  # times; a few minutes
    python -m benchmarks.ddp.run --part times memory sweep        # also memory, and other buckets
    python -m benchmarks.ddp.run --model transformer --rounds 5   # a first look
    python -m benchmarks.ddp.run --lanes local farandole          # of Farandole alone
    python -m benchmarks.ddp.run --quick                          # tiny models: does it work?

Prints tables and the targets, and writes ddp.jsonl (one line a row) and, of the sweep, a plot into
build/benchmarks. docs/benchmarks.md explains the method.
"""

import argparse
from collections.abc import Iterator

from benchmarks.ddp import outcome, steps
from benchmarks.ddp.models import TASKS
from benchmarks.ddp.rounds import Plan
from benchmarks.ddp.summary import FILE
from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse

PARTS = ["times", "memory", "sweep"]
LANES = ["alone", "local", "farandole", "torch_gloo_view", "torch_gloo", "torch_farandole"]
LANES.append("farandole_copied")  # gradients are copied into their buckets, not born there
BUCKETS_MIB = [0.25, 0.5, 1, 2, 4, 8, 25]
SWEPT_LANES = ["local", "torch_gloo_view", *(f"farandole@{mib:g}" for mib in BUCKETS_MIB)]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "tiny models, two rounds")
    parser.add_argument("--model", choices=[*TASKS], nargs="+", default=[*TASKS])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="times")
    parser.add_argument(
        "--lanes", nargs="+", metavar="LANE", help=f"{', '.join(LANES)}, or farandole@<MiB>"
    )
    parser.add_argument("--rounds", type=int, default=30)
    return parse(parser)


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    """One a part and model."""
    size, rounds = arguments.size, 2 if arguments.quick else arguments.rounds
    plans = []
    for part in arguments.part:
        for task in (TASKS[name] for name in arguments.model):
            if part != "times" and task.name == "tiny":
                continue  # one rank and one bucket
            lanes = arguments.lanes or lanes_of(part, size)
            if part == "memory" or task.ranks == 1:
                lanes = [lane for lane in lanes if lane != "alone"]
            plans.append(Plan(part, task, size, lanes, rounds))
    return plans


def lanes_of(part: str, size: str) -> list[str]:
    """All of a part, or a few where it is only shown that they work."""
    if part == "sweep":
        return SWEPT_LANES if size == "full" else SWEPT_LANES[:4]
    return LANES if size == "full" or part == "times" else LANES[2:4]


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    for plan in plans_of(arguments):
        yield steps.measure_memory(plan) if plan.part == "memory" else steps.measure(plan)


def place_of(row: Row) -> tuple[int, int]:
    """Where rows of this part and model stand."""
    return PARTS.index(row["part"]), [*TASKS].index(row["task"])


if __name__ == "__main__":
    arguments = parse_arguments()
    plot = "benchmarks.ddp.sweep_plot" if "sweep" in arguments.part else ""
    report = Report(FILE, outcome.table, outcome.targets, place_of, plot)
    report.make(arguments, measured(arguments))
