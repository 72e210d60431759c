# SPDX-License-Identifier: Apache-2.0
"""The all-reduce benchmark: Farandole, gloo and OpenMPI in one run, in interleaved rounds.

    make bench                                      # builds, then runs this
    python benchmarks/collectives/run.py --quick    # a few small sizes: does it work?

Prints a table of medians and ratios and the targets, and writes collectives.jsonl (one line a row),
all_reduce.svg and all_reduce.png into benchmarks/results. docs/benchmarks.md explains the method.
"""

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import import_time
import machine
from measure import SIZES, Plan, Row, measure
from report import Results, table, targets_table

REPOSITORY = Path(__file__).parent.parent.parent


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a lane, size and round")
    parser.add_argument("--quick", action="store_true", help="2 ranks, three sizes, one round")
    parser.add_argument(
        "--output", type=Path, help="folder (benchmarks/results; with --quick none)"
    )
    return parser.parse_args()


def main() -> None:
    """Measures, writes, prints."""
    arguments = parse_arguments()
    plan = Plan(arguments.ranks, arguments.sizes, arguments.rounds, arguments.seconds)
    output = arguments.output or REPOSITORY / "benchmarks" / "results"
    if arguments.quick:
        plan = Plan([2], [4, 1024, 256 * 1024], rounds=1, seconds=0.02)
        output = arguments.output
    rows = measure(plan, lambda line: print(line, flush=True))
    if find_spec("farandole"):
        rows.append(import_time.measure(1 if arguments.quick else 9))
    rows = [{**row, **machine.describe()} for row in rows]
    if output:
        write(rows, output)
    results = Results(rows)
    for ranks in results.ranks:
        print(f"\n{table(results, ranks)}")
    if not arguments.quick:
        print(f"\n{targets_table(results)}")


def write(rows: list[Row], folder: Path) -> None:
    """Results replace those of the run before; git keeps the history."""
    import plot  # needs matplotlib, which --quick does not

    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "collectives.jsonl").write_text("".join(lines))
    plot.draw(rows, folder)


if __name__ == "__main__":
    main()
