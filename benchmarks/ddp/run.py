# SPDX-License-Identifier: Apache-2.0
"""Training steps: Farandole's DDP, torch's over gloo and no DDP at all, in interleaved rounds.

    python benchmarks/ddp/run.py                                  # everything; minutes
    python benchmarks/ddp/run.py --model transformer --rounds 5   # a first look
    python benchmarks/ddp/run.py --model transformer --lanes local farandole
    python benchmarks/ddp/run.py --quick                          # tiny models: does it work?

Prints tables and the targets, and writes ddp.jsonl (one line a row) into benchmarks/results.
docs/benchmarks.md explains the method.
"""

import argparse
import json
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path.append(str(BENCHMARKS / "collectives"))

import machine  # noqa: E402
from models import TASKS  # noqa: E402
from report import text_of  # noqa: E402
from rounds import Plan, Row, measure  # noqa: E402
from tables import table, targets  # noqa: E402

LANES = ["alone", "local", "farandole", "torch_gloo_view", "torch_gloo", "torch_farandole"]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*TASKS], nargs="+", default=[*TASKS])
    parser.add_argument("--lanes", nargs="+", default=LANES, help=", ".join(LANES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds")
    parser.add_argument(
        "--output", type=Path, help="folder (benchmarks/results if all is measured)"
    )
    return parser.parse_args()


def main() -> None:
    """Measures, writes, prints."""
    arguments = parse_arguments()
    size, rounds = ("quick", 2) if arguments.quick else ("full", arguments.rounds)
    rows: list[Row] = []
    for name in arguments.model:
        lanes = [each for each in arguments.lanes if each != "alone" or TASKS[name].ranks > 1]
        plan = Plan(TASKS[name], size, lanes, rounds)
        rows += measure(plan, lambda line: print(line, flush=True))
    where = machine.describe()
    rows = [{**row, **where} for row in rows]
    complete = not arguments.quick and arguments.lanes == LANES
    output = arguments.output or (BENCHMARKS / "results" if complete else None)
    if output:
        write(rows, output)
    for name in arguments.model:
        print(f"\n{table(rows, name)}")
    if not arguments.quick:
        print(f"\n{text_of(targets(rows))}")


def write(rows: list[Row], folder: Path) -> None:
    """Results of a model replace those of the run before; git keeps the history."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ddp.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    measured = {row["task"] for row in rows}
    kept = [row for row in map(json.loads, lines) if row["task"] not in measured]
    ordered = sorted([*kept, *rows], key=lambda row: [*TASKS].index(row["task"]))
    path.write_text("".join(json.dumps(row) + "\n" for row in ordered))


if __name__ == "__main__":
    main()
