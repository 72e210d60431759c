# SPDX-License-Identifier: Apache-2.0
"""What a GradScaler costs, Farandole's and torch's, and what bfloat16 on the wire saves.

    python -m benchmarks.amp.run                              # steps with and without a scaler
    python -m benchmarks.amp.run --part times kernel wire     # all there is; a quarter of an hour
    python -m benchmarks.amp.run --rounds 10                  # a first look
    python -m benchmarks.amp.run --lanes ours_full ours_full+scaler    # of one way alone
    python -m benchmarks.amp.run --quick                      # tiny models: does it work?

Prints tables and the targets, and writes amp.jsonl (one line a row) into build/benchmarks.
docs/benchmarks.md explains the method.
"""

import argparse
from collections.abc import Iterator

from benchmarks.amp import outcome, unscaling, wire
from benchmarks.amp.lanes import LANES
from benchmarks.amp.summary import FILE
from benchmarks.ddp.rounds import Plan
from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.zero import kernels, steps
from benchmarks.zero.tasks import TASKS

PARTS = ["times", "kernel", "wire"]
KERNEL_SHARE = 3  # one of so many rounds is enough
QUICK_ROUNDS = 2


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "tiny models, two rounds")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="times")
    parser.add_argument("--lanes", choices=LANES, nargs="+", metavar="LANE", help=", ".join(LANES))
    help_text = "of the steps; a third for the kernels"
    parser.add_argument("--rounds", type=int, default=100, help=help_text)
    return parse(parser)


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    size = arguments.size
    rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
    for part in arguments.part:
        if part == "times":
            lanes = arguments.lanes or LANES
            yield steps.measure(Plan(part, TASKS["transformer"], size, lanes, rounds))
        elif part == "kernel":
            fewer = max(QUICK_ROUNDS, rounds // KERNEL_SHARE)
            for kernel in unscaling.kernels_of(size):
                yield kernels.measure(kernel, size, fewer)
        else:
            yield wire.measure(size)


if __name__ == "__main__":
    arguments = parse_arguments()
    report = Report(FILE, outcome.table, outcome.targets, lambda row: PARTS.index(row["part"]))
    report.make(arguments, measured(arguments))
