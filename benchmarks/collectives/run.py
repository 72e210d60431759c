# SPDX-License-Identifier: Apache-2.0
"""The collectives: Farandole, gloo and OpenMPI in one run, in interleaved rounds.

    make bench                                               # builds, then measures all_reduce
    python -m benchmarks.collectives.run --operation all     # every operation
    python -m benchmarks.collectives.run --quick             # a few small sizes: does it work?

Prints tables of medians and ratios and the targets, and writes collectives.jsonl (one line a row)
and, of all_reduce, a plot into build/benchmarks. docs/benchmarks.md explains the method.
"""

import argparse
from collections.abc import Iterator
from importlib.util import find_spec

from farandole.bench.sizes import KIB

from benchmarks.collectives import import_time, outcome
from benchmarks.collectives.measure import Plan, measure
from benchmarks.collectives.measured import Results, kind_of
from benchmarks.collectives.operations import OPERATIONS, Operation
from benchmarks.collectives.summary import FILE
from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.targets import Target

QUICK_SIZES = [KIB, 256 * KIB]
KINDS = [*OPERATIONS, "import"]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "2 ranks, a few sizes, one round")
    names = [*(name for name in OPERATIONS if name != "send_stream"), "all"]
    parser.add_argument(
        "--operation",
        choices=names,
        nargs="+",
        default=["all_reduce"],
        metavar="NAME",
        help=f"{', '.join(names)} (all_reduce)",
    )
    parser.add_argument("--ranks", type=int, nargs="+", help="2 4 for all_reduce, 2 for others")
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a lane, size and round")
    arguments = parse(parser)
    pairs = any(operation.pairs for operation in operations_of(arguments))
    if pairs and any(ranks % 2 for ranks in arguments.ranks or []):
        parser.error("send_recv needs pairs of ranks")
    return arguments


def operations_of(arguments: argparse.Namespace) -> list[Operation]:
    """Those asked for, in the order of the table."""
    asked = set(arguments.operation)
    names = set(OPERATIONS) if "all" in asked else asked
    if "send_recv" in names:
        names.add("send_stream")
    return [operation for name, operation in OPERATIONS.items() if name in names]


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    """all_reduce is measured with more ranks than the rest."""
    operations = operations_of(arguments)
    rounds, seconds = (1, 0.02) if arguments.quick else (arguments.rounds, arguments.seconds)
    plans = []
    for ranks, names in (
        ([2, 4], [each for each in operations if each.name == "all_reduce"]),
        ([2], [each for each in operations if each.name != "all_reduce"]),
    ):
        if names:
            sizes = arguments.sizes
            if arguments.quick and not sizes:
                sizes = [4, *QUICK_SIZES] if names[0].name == "all_reduce" else QUICK_SIZES
            wanted = arguments.ranks or ([2] if arguments.quick else ranks)
            plans.append(Plan(names, wanted, sizes, rounds, seconds))
    return plans


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table, and that of imports."""
    for plan in plans_of(arguments):
        yield from measure(plan)
    if has_all_reduce(arguments) and find_spec("farandole"):
        yield [import_time.measure(1 if arguments.quick else 9)]


def has_all_reduce(arguments: argparse.Namespace) -> bool:
    """Whether it is asked for."""
    return OPERATIONS["all_reduce"] in operations_of(arguments)


def table(rows: list[Row]) -> str:
    """Of one operation and number of ranks; imports have none."""
    results = Results(rows, kind_of(rows[0]))
    return "".join(outcome.table(results, ranks) for ranks in results.ranks)


def targets(rows: list[Row]) -> list[Target]:
    """Those of what was measured."""
    results = Results(rows)
    return (outcome.targets(results) if results.rows else []) + outcome.operation_targets(rows)


if __name__ == "__main__":
    arguments = parse_arguments()
    report = Report(
        FILE,
        table,
        targets,
        place_of=lambda row: KINDS.index(kind_of(row)),
        plot="benchmarks.collectives.plot" if has_all_reduce(arguments) else "",
    )
    report.make(arguments, measured(arguments))
