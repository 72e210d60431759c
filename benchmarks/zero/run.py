# SPDX-License-Identifier: Apache-2.0
"""Training with sharded optimizers, Farandole's and torch's, and with whole ones, in rounds.

    python -m benchmarks.zero.run                                # times; a quarter of an hour
    python -m benchmarks.zero.run --part times memory kernel     # all there is
    python -m benchmarks.zero.run --model transformer --ranks 2 --rounds 5   # a first look
    python -m benchmarks.zero.run --lanes local ours_full ours_shard         # of Farandole alone
    python -m benchmarks.zero.run --quick                        # tiny models: does it work?

Prints tables and the targets, and writes zero.jsonl (one line a row) into build/benchmarks.
docs/benchmarks.md explains the method.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.ddp.rounds import Plan
from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.zero import kernels, outcome, steps
from benchmarks.zero.lanes import LANES
from benchmarks.zero.summary import FILE
from benchmarks.zero.tasks import TASKS

PARTS = ["times", "memory", "kernel"]
PLACES = [*TASKS, "kernel"]
QUICK_ROUNDS = 2


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "tiny models, two rounds")
    parser.add_argument("--model", choices=[*TASKS], nargs="+", default=[*TASKS])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="times")
    parser.add_argument(
        "--lanes", choices=[*LANES], nargs="+", metavar="LANE", help=", ".join(LANES)
    )
    help_text = "of the smaller model on 2 ranks; half for the larger, and for 4 ranks"
    parser.add_argument("--rounds", type=int, default=30, help=help_text)
    return parse(parser)


def plans_of(arguments: argparse.Namespace, part: str) -> Iterator[Plan]:
    """One a model and number of ranks."""
    lanes = arguments.lanes or [*LANES]
    for task in (TASKS[name] for name in arguments.model):
        for ranks in arguments.ranks:
            is_larger = task.name == "gpt2"
            rounds = max(1, arguments.rounds * 2 // ranks // (1 + is_larger))
            if arguments.quick:
                rounds = QUICK_ROUNDS
            yield Plan(part, replace(task, ranks=ranks), arguments.size, lanes, rounds)


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    for part in arguments.part:
        if part == "kernel":
            rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
            yield kernels.measure(kernels.adamw(arguments.size), arguments.size, rounds)
            continue
        run = steps.measure_memory if part == "memory" else steps.measure
        for plan in plans_of(arguments, part):
            yield run(plan)


def place_of(row: Row) -> tuple[int, int, int]:
    """Where rows of this part, model and number of ranks stand."""
    ranks = 0 if row["part"] == "kernel" else row["ranks"]
    return PARTS.index(row["part"]), PLACES.index(row["task"]), ranks


if __name__ == "__main__":
    arguments = parse_arguments()
    report = Report(FILE, outcome.table, outcome.targets, place_of)
    report.make(arguments, measured(arguments))
