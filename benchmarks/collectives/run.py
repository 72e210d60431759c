# SPDX-License-Identifier: Apache-2.0
"""The collectives: Farandole, gloo and OpenMPI in one run, in interleaved rounds.

    make bench                                            # builds, then measures all_reduce
    python benchmarks/collectives/run.py --operation all  # every operation
    python benchmarks/collectives/run.py --quick          # a few small sizes: does it work?

Prints tables of medians and ratios and the targets, and writes collectives.jsonl (one line a row)
and, of all_reduce, a plot into benchmarks/results. docs/benchmarks.md explains the method.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import import_time
import machine
from measure import Plan, Row, measure
from operations import KIB, OPERATIONS, Operation
from report import Results, operation_targets, table, targets, text_of
from results import replace

REPOSITORY = Path(__file__).parent.parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
QUICK_SIZES = [KIB, 256 * KIB]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
    parser.add_argument("--quick", action="store_true", help="2 ranks, a few sizes, one round")
    parser.add_argument(
        "--output", type=Path, help="folder (benchmarks/results; with --quick none)"
    )
    arguments = parser.parse_args()
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


def main() -> None:
    """Measures, writes, prints."""
    arguments = parse_arguments()
    rows: list[Row] = []
    for plan in plans_of(arguments):
        rows += measure(plan, lambda line: print(line, flush=True))
    names = [operation.name for operation in operations_of(arguments)]
    if "all_reduce" in names and find_spec("farandole"):
        rows.append(import_time.measure(1 if arguments.quick else 9))
    where = machine.describe()
    rows = [{**row, **where} for row in rows]
    output = arguments.output or (None if arguments.quick else RESULTS)
    if output:
        write(rows, output)
    for name in names:
        results = Results(rows, name)
        for ranks in results.ranks:
            print(f"\n{table(results, ranks)}")
    if not arguments.quick:
        lines = targets(Results(rows)) if "all_reduce" in names else []
        print(f"\n{text_of(lines + operation_targets(rows))}")


def write(rows: list[Row], folder: Path) -> None:
    """Results of an operation replace those of the run before."""
    kinds = [*OPERATIONS, "import"]
    replace(folder / "collectives.jsonl", rows, lambda row: kinds.index(kind_of(row)))
    if any(kind_of(row) == "all_reduce" for row in rows):
        import plot  # needs matplotlib

        plot.draw(rows, folder)


def kind_of(row: Row) -> str:
    """What a row is about."""
    return "import" if row["lane"] == "import" else row.get("operation", "all_reduce")


if __name__ == "__main__":
    main()
