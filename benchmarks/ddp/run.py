# SPDX-License-Identifier: Apache-2.0
"""Training steps: Farandole's DDP, torch's over gloo and no DDP at all, in interleaved rounds.

    python benchmarks/ddp/run.py                                  # times; a few minutes
    python benchmarks/ddp/run.py --part times memory sweep        # also memory, and other buckets
    python benchmarks/ddp/run.py --model transformer --rounds 5   # a first look
    python benchmarks/ddp/run.py --lanes local farandole          # of Farandole alone
    python benchmarks/ddp/run.py --quick                          # tiny models: does it work?

Prints tables and the targets, and writes ddp.jsonl (one line a row) and, of the sweep, a plot into
benchmarks/results. docs/benchmarks.md explains the method.
"""

import argparse
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path.append(str(BENCHMARKS / "collectives"))

import machine  # noqa: E402
from models import TASKS  # noqa: E402
from report import text_of  # noqa: E402
from results import replace  # noqa: E402
from rounds import Plan, Row, measure, measure_memory  # noqa: E402
from tables import table, targets  # noqa: E402

PARTS = ["times", "memory", "sweep"]
LANES = ["alone", "local", "farandole", "torch_gloo_view", "torch_gloo", "torch_farandole"]
LANES.append("farandole_copied")  # gradients are copied into their buckets, not born there
BUCKETS_MIB = [0.25, 0.5, 1, 2, 4, 8, 25]
SWEPT_LANES = ["local", "torch_gloo_view", *(f"farandole@{mib:g}" for mib in BUCKETS_MIB)]
FULL, QUICK = "full", "quick"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*TASKS], nargs="+", default=[*TASKS])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="times")
    parser.add_argument(
        "--lanes", nargs="+", metavar="LANE", help=f"{', '.join(LANES)}, or farandole@<MiB>"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds")
    parser.add_argument(
        "--output", type=Path, help="folder (benchmarks/results if all lanes are measured)"
    )
    return parser.parse_args()


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    """One a part and model."""
    size, rounds = (QUICK, 2) if arguments.quick else (FULL, arguments.rounds)
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
        return SWEPT_LANES if size == FULL else SWEPT_LANES[:4]
    return LANES if size == FULL or part == "times" else LANES[2:4]


def main() -> None:
    """Measures, writes, prints."""
    arguments = parse_arguments()
    where = machine.describe()
    tables, rows = [], []
    for plan in plans_of(arguments):
        run = measure_memory if plan.part == "memory" else measure
        measured = run(plan, lambda line: print(line, flush=True))
        tables.append(table(measured))
        rows += [{**row, **where} for row in measured]
    complete = not arguments.quick and not arguments.lanes
    output = arguments.output or (BENCHMARKS / "results" if complete else None)
    if output:
        write(rows, output)
    print("".join(f"\n{each}\n" for each in tables))
    if not arguments.quick:
        print(text_of(targets(rows)))


def write(rows: list[Row], folder: Path) -> None:
    """Results of a part and model replace those of the run before."""
    everything = replace(folder / "ddp.jsonl", rows, place_of)
    if any(row["part"] == "sweep" for row in rows):
        import sweep_plot  # needs matplotlib

        sweep_plot.draw([row for row in everything if row["part"] == "sweep"], folder)


def place_of(row: Row) -> tuple[int, int]:
    """Where rows of this part and model stand."""
    return PARTS.index(row["part"]), [*TASKS].index(row["task"])


if __name__ == "__main__":
    main()
