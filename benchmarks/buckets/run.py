# SPDX-License-Identifier: Apache-2.0
"""Buckets that are reduced during backward: what a round costs where nothing overlaps with it.

    python -m benchmarks.buckets.run            # half a minute
    python -m benchmarks.buckets.run --quick    # does it work?

Beside it, in the same run, a symmetric all_reduce of the whole buffer, and a copy by each rank of
as many bytes as it reads and writes in either. Prints a table, and writes buckets.jsonl (one line a
row) into build/benchmarks.
"""

import statistics
from collections.abc import Iterator

from farandole.bench.sizes import KIB, MIB, size_text

from benchmarks.harness.ranks import Ranks, commands_of_program
from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.tables import columns, time_text

PROGRAM = "farandole_bench_buckets"
RANKS = 2
BYTES = 64 * MIB
BUCKETS = [256 * KIB, MIB, 4 * MIB, 25 * MIB]
IDLE_BUCKETS = 1000
WAYS = ("round", "all_reduce", "copy")


def measured(iterations: int) -> Iterator[list[Row]]:
    """The rows of the table."""
    with Ranks(PROGRAM, RANKS, commands_of_program(PROGRAM)) as running:
        rows = [measure(running, size, iterations) for size in BUCKETS]
        idle_ns = measure_idle(running, iterations)
    yield [{**row, "idle_ns": idle_ns} for row in rows]


def measure(running: Ranks, bucket_bytes: int, iterations: int) -> Row:
    """All ways by turns; times of all ranks pooled."""
    answers = running.ask(f"round {BYTES} {bucket_bytes} {iterations}")
    if any(answer["wrong"] for answer in answers):
        raise RuntimeError(f"wrong averages in buckets of {bucket_bytes} bytes")
    row: Row = {"ranks": RANKS, "bytes": BYTES, "bucket_bytes": bucket_bytes}
    for way in WAYS:
        times = sorted(time / 1000 for answer in answers for time in answer[f"{way}_ns"])
        row[f"{way}_median_us"] = round(statistics.median(times), 1)
        row[f"{way}_p95_us"] = round(times[int(len(times) * 0.95)], 1)
    return row


def measure_idle(running: Ranks, iterations: int) -> float:
    """Nanoseconds of publish() and progress() a bucket, where there is nothing to reduce."""
    answers = running.ask(f"idle {IDLE_BUCKETS} {iterations}")
    times: list[float] = [time for answer in answers for time in answer["idle_ns"]]
    return round(statistics.median(times), 1)


def table(rows: list[Row]) -> str:
    """One line a size of buckets: median and p95, and the round beside the others."""
    lines = [["buckets of", *WAYS, *(f"round/{way}" for way in WAYS[1:])]]
    for row in rows:
        times = [
            f"{time_text(row[f'{way}_median_us'])} ({time_text(row[f'{way}_p95_us'])})"
            for way in WAYS
        ]
        ratios = [row["round_median_us"] / row[f"{way}_median_us"] for way in WAYS[1:]]
        ratio_texts = [f"{ratio:.2f}" for ratio in ratios]
        lines.append([size_text(row["bucket_bytes"]), *times, *ratio_texts])
    head = f"{size_text(BYTES)} of float32 on {RANKS} ranks: median (p95)"
    idle = f"publish() and progress() with nothing to reduce: {rows[0]['idle_ns']:.0f} ns a bucket"
    return f"{head}\n{columns(lines)}\n{idle}"


if __name__ == "__main__":
    parser = new_parser(__doc__, "two iterations")
    parser.add_argument("--iterations", type=int, default=40, help="of each way")
    arguments = parse(parser)
    iterations = 2 if arguments.quick else arguments.iterations
    Report("buckets.jsonl", table).make(arguments, measured(iterations))
