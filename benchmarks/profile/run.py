# SPDX-License-Identifier: Apache-2.0
"""What a recorder costs: training steps with it, in turns with steps without.

    python -m benchmarks.profile.run            # four minutes
    python -m benchmarks.profile.run --quick    # a tiny model: does it work?

Two ranks train a transformer of 33.6 million parameters with sharded AdamW. Prints a table and the
targets, and writes profile.jsonl (one line a row) into build/benchmarks.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farandole.bench.rounds import interleaved

from benchmarks.ddp.rounds import Times
from benchmarks.harness import tables
from benchmarks.harness.ranks import Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, median_and_p95, say, uncertainty
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.targets import Target, verdict
from benchmarks.profile.lanes import LANES

TASK, RANKS = "transformer", 2
STEPS = 5  # of a turn
CALLS = 10_000
MOST = {"recorder": 1.01, "everything": 1.01}
MOST_PERCENT_OFF = 0.1
ANNOTATIONS = 10  # of a step, if a program names all its phases


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "a tiny model, two rounds")
    parser.add_argument("--rounds", type=int, default=40, help="40")
    return parse(parser)


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of the table."""
    rounds = 2 if arguments.quick else arguments.rounds
    times = {lane: Times() for lane in LANES}
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        output = str(Path(folder) / "profile")
        start = commands_of_module("profile.rank", TASK, arguments.size, output)
        with Ranks("profile", RANKS, start) as ranks:
            for lane in LANES:
                ranks.ask(f"{lane} {STEPS}")  # warms up
            for turn, lanes in enumerate(interleaved([*LANES], rounds)):
                for lane in lanes:
                    times[lane].add(ranks.ask(f"{lane} {STEPS}"))
                if turn in {0, rounds // 2, rounds - 1}:
                    last = (f"{lane} {own.steps_ms[-1]:.1f} ms" for lane, own in times.items())
                    say(", ".join(last))
            idle = max(answer["annotation_ns"] for answer in ranks.ask(f"idle {CALLS}"))
        written = sum(path.stat().st_size for path in Path(output).rglob("*.json"))
    rows: list[Row] = [row_of(lane, times) for lane in LANES]
    off = statistics.median(times["off"].steps_ms)
    percent = round(ANNOTATIONS * idle / 1e6 / off * 100, 5)
    per_step = round(written / (2 * (rounds + 1) * STEPS * RANKS))
    yield [
        *rows,
        {"lane": "idle", "annotation_ns": round(idle, 1), "share_percent": percent},
        {"lane": "files", "bytes_a_step": per_step},
    ]


def row_of(lane: str, times: dict[str, Times]) -> Row:
    """Of a way to look at the training."""
    own, without = times[lane].steps_ms, times["off"].steps_ms
    row = {"lane": lane, "task": TASK, "ranks": RANKS, "steps": len(own), **median_and_p95(own)}
    return row if lane == "off" else row | compared(own, without)


COLUMNS: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    *tables.MEDIAN_AND_P95,
    ("x off", tables.field("ratio", ".4f")),
    ("quartiles", tables.quartiles()),
    ("more ms", tables.field("exposed_ms", "+.3f")),
]


def table(rows: list[Row]) -> str:
    """One line a way, and what is written."""
    times = tables.titled(
        f"a step of {TASK}, {RANKS} ranks", [row for row in rows if row["lane"] in LANES], COLUMNS
    )
    of = {row["lane"]: row for row in rows}
    idle, files = of["idle"], of["files"]
    return (
        f"{times}\nan annotation that nobody records: {idle['annotation_ns']:.0f} ns; "
        f"files: {files['bytes_a_step']} bytes a step and rank"
    )


def targets(rows: list[Row]) -> list[Target]:
    """Of steps, and of what is off."""
    of = {row["lane"]: row for row in rows}
    lines = []
    for lane, most in MOST.items():
        row = of[lane]
        doubt = uncertainty(row["ratio_quartiles"], row["steps"])
        state = f"{row['ratio']:.4f}x, {verdict(row['ratio'], most)}, uncertain by {doubt:.4f}"
        lines.append((f"{LANES[lane]}: step <= {most}x", state))
    off = of["idle"]["share_percent"]
    name = f"{ANNOTATIONS} annotations that nobody records <= {MOST_PERCENT_OFF} % of a step"
    return [*lines, (name, f"{off:.4f} %, {verdict(off, MOST_PERCENT_OFF)}")]


if __name__ == "__main__":
    given = parse_arguments()
    Report("profile.jsonl", table, targets).make(given, measured(given))
