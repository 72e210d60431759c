# SPDX-License-Identifier: Apache-2.0
"""Training with sharded optimizers, Farandole's and torch's, and with whole ones, in rounds.

    python benchmarks/zero/run.py                                # times; a quarter of an hour
    python benchmarks/zero/run.py --part times memory kernel     # all there is
    python benchmarks/zero/run.py --model transformer --ranks 2 --rounds 5   # a first look
    python benchmarks/zero/run.py --lanes local ours_full ours_shard         # of Farandole alone
    python benchmarks/zero/run.py --quick                        # tiny models: does it work?

Prints tables and the targets, and writes zero.jsonl (one line a row) into benchmarks/results.
docs/benchmarks.md explains the method.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path += [str(BENCHMARKS / "collectives"), str(BENCHMARKS / "ddp")]

import kernels  # noqa: E402
import outcome  # noqa: E402
import steps  # noqa: E402
from publishing import publish, say  # noqa: E402
from rounds import Plan, Row  # noqa: E402
from tasks import TASKS  # noqa: E402
from zero_lanes import LANES  # noqa: E402

PARTS = ["times", "memory", "kernel"]
PLACES = [*TASKS, "kernel"]
QUICK_ROUNDS = 2


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*TASKS], nargs="+", default=[*TASKS])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="times")
    parser.add_argument(
        "--lanes", choices=[*LANES], nargs="+", metavar="LANE", help=", ".join(LANES)
    )
    help_text = "of the smaller model on 2 ranks; half for the larger, and for 4 ranks"
    parser.add_argument("--rounds", type=int, default=30, help=help_text)
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds")
    parser.add_argument(
        "--output", type=Path, help="folder (benchmarks/results if all lanes are measured)"
    )
    return parser.parse_args()


def plans_of(arguments: argparse.Namespace, part: str) -> Iterator[Plan]:
    """One a model and number of ranks."""
    size = "quick" if arguments.quick else "full"
    lanes = arguments.lanes or [*LANES]
    for task in (TASKS[name] for name in arguments.model):
        for ranks in arguments.ranks:
            is_larger = task.name == "gpt2"
            rounds = max(1, arguments.rounds * 2 // ranks // (1 + is_larger))
            if arguments.quick:
                rounds = QUICK_ROUNDS
            yield Plan(part, replace(task, ranks=ranks), size, lanes, rounds)


def measure(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    for part in arguments.part:
        if part == "kernel":
            size = "quick" if arguments.quick else "full"
            rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
            yield kernels.measure(kernels.adamw(size), size, rounds, say)
            continue
        run = steps.measure_memory if part == "memory" else steps.measure
        for plan in plans_of(arguments, part):
            yield run(plan, say)


def main() -> None:
    """Measures, writes, prints."""
    arguments = parse_arguments()
    publish(arguments, measure(arguments), "zero.jsonl", place_of, outcome)


def place_of(row: Row) -> tuple[int, int, int]:
    """Where rows of this part, model and number of ranks stand."""
    ranks = 0 if row["part"] == "kernel" else row["ranks"]
    return PARTS.index(row["part"]), PLACES.index(row["task"]), ranks


if __name__ == "__main__":
    main()
