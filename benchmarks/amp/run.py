# SPDX-License-Identifier: Apache-2.0
"""What a GradScaler costs, Farandole's and torch's, and what bfloat16 on the wire saves.

    python benchmarks/amp/run.py                              # steps with and without a scaler
    python benchmarks/amp/run.py --part times kernel wire     # all there is; a quarter of an hour
    python benchmarks/amp/run.py --rounds 10                  # a first look
    python benchmarks/amp/run.py --lanes ours_full ours_full+scaler    # of one way alone
    python benchmarks/amp/run.py --quick                      # tiny models: does it work?

Prints tables and the targets, and writes amp.jsonl (one line a row) into benchmarks/results.
docs/benchmarks.md explains the method.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path += [str(BENCHMARKS / folder) for folder in ("collectives", "ddp", "zero")]

import amp_outcome  # noqa: E402
import kernels  # noqa: E402
import steps  # noqa: E402
import unscaling  # noqa: E402
import wire  # noqa: E402
from amp_lanes import LANES  # noqa: E402
from publishing import publish, say  # noqa: E402
from rounds import Plan, Row  # noqa: E402
from tasks import TASKS  # noqa: E402

PARTS = ["times", "kernel", "wire"]
KERNEL_SHARE = 3  # one of so many rounds is enough
QUICK_ROUNDS = 2


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="times")
    parser.add_argument("--lanes", choices=LANES, nargs="+", metavar="LANE", help=", ".join(LANES))
    help_text = "of the steps; a third for the kernels"
    parser.add_argument("--rounds", type=int, default=100, help=help_text)
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds")
    parser.add_argument(
        "--output", type=Path, help="folder (benchmarks/results if all lanes are measured)"
    )
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    size = "quick" if arguments.quick else "full"
    rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
    for part in arguments.part:
        if part == "times":
            lanes = arguments.lanes or LANES
            yield steps.measure(Plan(part, TASKS["transformer"], size, lanes, rounds), say)
        elif part == "kernel":
            fewer = max(QUICK_ROUNDS, rounds // KERNEL_SHARE)
            for kernel in unscaling.kernels_of(size):
                yield kernels.measure(kernel, size, fewer, say)
        else:
            yield wire.measure(size, say)


def main() -> None:
    """Measures, writes, prints."""
    arguments = parse_arguments()
    publish(arguments, measure(arguments), "amp.jsonl", place_of, amp_outcome)


def place_of(row: Row) -> int:
    """Where rows of this part stand."""
    return PARTS.index(row["part"])


if __name__ == "__main__":
    main()
