# SPDX-License-Identifier: Apache-2.0
"""Buckets that are reduced during backward: what a round costs where nothing overlaps with it.

    python benchmarks/buckets/run.py            # half a minute
    python benchmarks/buckets/run.py --quick    # does it work?

Beside it, in the same run, a symmetric all_reduce of the whole buffer, and a copy by each rank of
as many bytes as it reads and writes in either. Prints a table, and writes buckets.jsonl (one line a
row) into benchmarks/results.
"""

import argparse
import json
import statistics
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCHMARKS / "collectives"))

import machine  # noqa: E402
from lanes import Ranks, program_commands  # noqa: E402
from operations import KIB, MIB  # noqa: E402
from report import columns, size_text, time_text  # noqa: E402

PROGRAM = "farandole_bench_buckets"
RANKS = 2
BYTES = 64 * MIB
BUCKETS = [256 * KIB, MIB, 4 * MIB, 25 * MIB]
IDLE_BUCKETS = 1000
WAYS = ("round", "all_reduce", "copy")


def main() -> None:
    """Measures, writes, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=40, help="of each way")
    parser.add_argument("--quick", action="store_true", help="two iterations")
    parser.add_argument("--output", type=Path, help="folder (with --quick none)")
    arguments = parser.parse_args()
    iterations = 2 if arguments.quick else arguments.iterations
    with closing(Ranks(PROGRAM, RANKS, partial(program_commands, PROGRAM))) as running:
        rows = [measure(running, size, iterations) for size in BUCKETS]
        idle_ns = measure_idle(running, iterations)
    where = machine.describe()
    rows = [{**row, "idle_ns": idle_ns, **where} for row in rows]
    output = arguments.output or (None if arguments.quick else BENCHMARKS / "results")
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "buckets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))


def measure(running: Ranks, bucket_bytes: int, iterations: int) -> dict[str, Any]:
    """All ways by turns; times of all ranks pooled."""
    answers = running.ask(f"round {BYTES} {bucket_bytes} {iterations}")
    if any(answer["wrong"] for answer in answers):
        raise RuntimeError(f"wrong averages in buckets of {bucket_bytes} bytes")
    row: dict[str, Any] = {"ranks": RANKS, "bytes": BYTES, "bucket_bytes": bucket_bytes}
    for way in WAYS:
        times = sorted(time / 1000 for answer in answers for time in answer[f"{way}_ns"])
        row[f"{way}_median_us"] = round(statistics.median(times), 1)
        row[f"{way}_p95_us"] = round(times[int(len(times) * 0.95)], 1)
    return row


def measure_idle(running: Ranks, iterations: int) -> float:
    """Nanoseconds of publish() and progress() a bucket, where there is nothing to reduce."""
    answers = running.ask(f"idle {IDLE_BUCKETS} {iterations}")
    return round(statistics.median(time for answer in answers for time in answer["idle_ns"]), 1)


def table(rows: list[dict[str, Any]]) -> str:
    """One line a size of buckets: median and p95, and the round beside the others."""
    lines = [["buckets of", "round", "all_reduce", "copy", "round/all_reduce", "round/copy"]]
    for row in rows:
        times = [
            f"{time_text(row[f'{way}_median_us'])} ({time_text(row[f'{way}_p95_us'])})"
            for way in WAYS
        ]
        ratios = [row["round_median_us"] / row[f"{way}_median_us"] for way in WAYS[1:]]
        lines.append(
            [size_text(row["bucket_bytes"]), *times, *(f"{ratio:.2f}" for ratio in ratios)]
        )
    head = f"{size_text(BYTES)} of float32 on {RANKS} ranks: median (p95)\n"
    idle = f"publish() and progress() with nothing to reduce: {rows[0]['idle_ns']:.0f} ns a bucket"
    return f"{head}{columns(lines)}\n{idle}"


if __name__ == "__main__":
    main()
