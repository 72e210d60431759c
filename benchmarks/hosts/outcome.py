# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from typing import Any

from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.targets import Target, verdict
from benchmarks.hosts.measure import LANES, OF_PART

FILE = "hosts.jsonl"
TWO, FOUR = ["0,1", "0,0,1,1", "0,1,0,1"], ["0,1,2,3", "0,0,1,1,2,2,3,3"]
LEAST_OF_RAW = {**dict.fromkeys(TWO, 0.95), **dict.fromkeys(FOUR, 0.90)}
JUDGED_RATE, JUDGED_BYTES = "1gbit", 16 << 20
LEAST_BF16 = 1.9
MOST_OF_BOUND = 1.1

REDUCED: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    ("size", lambda row: tables.size_text(row["bytes"])),
    *tables.MEDIAN_AND_P95,
    ("of plain TCP", tables.field("of_raw", ".2f")),
    ("CPU s a GB", tables.field("cpu_s_a_gb", ".2f")),
]
STEPS: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    *tables.MEDIAN_AND_P95,
    ("bytes on the wire ms", tables.field("wire_ms", ".0f")),
]


def place_of(row: Row) -> Any:
    """What is measured together."""
    return [*OF_PART].index(row["part"]), row["hosts"], row["rate"]


def table(rows: list[Row]) -> str:
    """One line a size and lane."""
    first = rows[0]
    where = f"ranks on hosts {first['hosts']}, {first['rate']}"
    if first["part"] == "steps":
        what = f"forward and backward, {tables.size_text(first['bytes'])} of gradients"
        return tables.titled(f"{what}, {where}", rows, STEPS)
    return tables.titled(f"all_reduce, {where}", rows, REDUCED)


def targets(rows: list[Row]) -> list[Target]:
    """Each target that this run can judge, and what became of it."""
    by = {(row["part"], row["hosts"], row["bytes"], row["lane"]): row for row in rows_at(rows)}
    found: list[Target] = []
    for (part, hosts, size, lane), row in by.items():
        if lane != "farandole":
            continue
        if part == "all_reduce" and size == JUDGED_BYTES and "of_raw" in row:
            least = LEAST_OF_RAW[hosts]
            name = f"hosts {hosts}, 16 MiB: >= {least} of plain TCP"
            found.append((name, f"{row['of_raw']:.3f}, {verdict(least, row['of_raw'])}"))
            if half := by.get((part, hosts, size, "farandole_bf16")):
                ratio = row["median_ms"] / half["median_ms"]
                name = f"hosts {hosts}, 16 MiB: bfloat16 >= {LEAST_BF16}x faster"
                found.append((name, f"{ratio:.2f}x, {verdict(LEAST_BF16, ratio)}"))
        if part == "steps" and (alone := by.get((part, hosts, size, "alone"))):
            bound = max(alone["median_ms"], row["wire_ms"])
            ratio = row["median_ms"] / bound
            name = f"hosts {hosts}, step <= {MOST_OF_BOUND}x of compute or wire"
            found.append((name, f"{ratio:.3f}x, {verdict(ratio, MOST_OF_BOUND)}"))
    return found


def rows_at(rows: list[Row]) -> list[Row]:
    """Those that targets are about."""
    return [row for row in rows if row["rate"] == JUDGED_RATE]
