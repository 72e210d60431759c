# SPDX-License-Identifier: Apache-2.0
"""How long a training takes to be saved and loaded, and how much memory that takes.

    python -m benchmarks.checkpoint.run                     # 33.6 M parameters, 2 ranks
    python -m benchmarks.checkpoint.run --task gpt2         # 125 M
    python -m benchmarks.checkpoint.run --task medium       # 350 M; lane by lane, not in turns
    python -m benchmarks.checkpoint.run --folder /scratch   # on another disk
    python -m benchmarks.checkpoint.run --quick             # a tiny model: does it work?

Prints tables and the targets, and writes checkpoint.jsonl (one line a row) into build/benchmarks.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farandole.bench.rounds import interleaved

from benchmarks.checkpoint import outcome
from benchmarks.checkpoint.lanes import OF_PART, PARTS
from benchmarks.checkpoint.tasks import ONE_AT_A_TIME, TASKS
from benchmarks.harness.ranks import Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, say
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.zero.tasks import parameters_of

FILE = "checkpoint.jsonl"
ARRAYS = 3  # parameter and two moments, float32


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "a tiny model, two rounds")
    parser.add_argument("--task", choices=TASKS, default="transformer", help="transformer")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--rounds", type=int, default=7, help="7")
    parser.add_argument("--folder", type=Path, help="where checkpoints go; the system's for files")
    return parse(parser)


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="farandole-bench-") as place:
        commands = commands_of_module(
            *("checkpoint.rank", arguments.task, arguments.size, place),
            settings=["FARANDOLE_LOG=warning"],
        )
        for part in PARTS:
            with Ranks(part, arguments.ranks, commands) as ranks:
                yield rows_of_part(part, arguments, ranks)


def rows_of_part(part: str, arguments: argparse.Namespace, ranks: Ranks) -> list[Row]:
    """One a lane."""
    parameters = parameters_of(TASKS[arguments.task], arguments.size)
    head = {"task": arguments.task, "ranks": arguments.ranks, "parameters": parameters}
    if part == "memory":
        state = parameters * 4 * (ARRAYS - 1) // arguments.ranks + parameters * 4
        rows = []
        for lane in OF_PART[part]:
            answers = ranks.ask(f"memory {lane}")
            most = {f"{key}_bytes": max(each[key] for each in answers) for key in ("save", "load")}
            rows.append({"part": part, "lane": lane, **head, **most, "state_bytes": state})
        return rows
    lanes = OF_PART[part]
    times: dict[str, list[float]] = {lane: [] for lane in lanes}
    rounds = 2 if arguments.quick else arguments.rounds
    in_turns = [*interleaved([*lanes], rounds + 1)]
    if arguments.task in ONE_AT_A_TIME:
        in_turns = [[lane] * (rounds + 1) for lane in lanes]
    for order in in_turns:
        for lane in order:
            times[lane].append(max(each["ms"] for each in ranks.ask(f"{part} {lane}")))
        say(f"{part}: {', '.join(f'{lane} {own[-1]:.0f}' for lane, own in times.items() if own)}")
    times = {lane: own[1:] for lane, own in times.items()}  # the first one warms up
    moved = parameters * 4 * ARRAYS
    rows = []
    for lane, own in times.items():
        median = statistics.median(own)
        rows.append(
            {
                "part": part,
                "lane": lane,
                **head,
                "rounds": rounds,
                "median_ms": round(median, 3),
                "mb_s": round(moved / median / 1e3, 1),
                "of_raw": compared(own, times["raw"])["ratio"],
                "of_ours": compared(own, times["farandole"])["ratio"],
            }
        )
    return rows


if __name__ == "__main__":
    arguments = parse_arguments()
    report = Report(
        *(FILE, outcome.table, outcome.targets),
        lambda row: ([*TASKS].index(row["task"]), [*PARTS].index(row["part"])),
    )
    report.make(arguments, measured(arguments))
