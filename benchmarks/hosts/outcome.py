# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from typing import Any

from farandole.bench.sizes import MIB, size_text

from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.targets import Target, verdict
from benchmarks.hosts.lanes import LANES, OF_PART, hosts_of, layout_text

TWO, FOUR = ["0,1", "0,0,1,1", "0,1,0,1"], ["0,1,2,3", "0,0,1,1,2,2,3,3"]
LEAST_OF_RAW = {**dict.fromkeys(TWO, 0.95), **dict.fromkeys(FOUR, 0.90)}
JUDGED_RATE, JUDGED_BYTES = "1gbit", 16 << 20
LEAST_BF16 = 1.9
STEP_LAYOUT, MOST_OF_BOUND = "0,1", 1.1
MOST_FORMATION_MS = {2: 150, 64: 3000}  # by ranks

REDUCED: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    ("size", lambda row: size_text(row["bytes"])),
    *tables.MEDIAN_AND_P95,
    ("of plain TCP", tables.field("of_raw", ".2f")),
    ("CPU s a GB", tables.field("cpu_s_a_gb", ".2f")),
]
STEPS: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    *tables.MEDIAN_AND_P95,
    ("bound ms", tables.field("bound_ms", ".0f")),
    ("x bound", tables.field("of_bound", ".3f")),
]
FORMATION: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    ("init ms", tables.field("median_ms", ".1f")),
    ("p95", tables.field("p95_ms", ".1f")),
    ("with a barrier", tables.field("ready_ms", ".1f")),
    ("CPU ms a rank", tables.field("cpu_ms", ".1f")),
]


def place_of(row: Row) -> Any:
    """What is measured together; the rate that targets are about comes first."""
    part, hosts, rate = [*OF_PART].index(row["part"]), row["hosts"], row["rate"]
    return part, rate != JUDGED_RATE, rate, len(set(hosts_of(hosts))), len(hosts), hosts


def measured(rows: list[Row]) -> list[Row]:
    """Without those of lanes that cannot run here."""
    return [row for row in rows if "cannot" not in row]


def table(rows: list[Row]) -> str:
    """One line a size and lane; below it what could not be measured."""
    first = rows[0]
    where = f"{layout_text(first['hosts'])}, {first['rate']}"
    titles = {
        "all_reduce": f"all_reduce, {where}",
        "steps": f"training steps, {first['bytes'] / MIB:.1f} MiB of gradients, {where}",
        "formation": f"init_process_group() of all ranks, {where}",
    }
    columns = {"all_reduce": REDUCED, "steps": STEPS, "formation": FORMATION}[first["part"]]
    text = tables.titled(titles[first["part"]], measured(rows), columns)
    missing = (row for row in rows if "cannot" in row)
    return text + "".join(f"\nwithout {LANES[row['lane']]}: {row['cannot']}" for row in missing)


def targets(rows: list[Row]) -> list[Target]:
    """Each target that this run can judge, and what became of it."""
    rows = [row for row in measured(rows) if row["rate"] == JUDGED_RATE]
    by = {(row["part"], row["hosts"], row["bytes"], row["lane"]): row for row in rows}
    found: list[Target] = []
    for (part, hosts, size, lane), row in by.items():
        if lane != "farandole":
            continue
        if part == "all_reduce" and size == JUDGED_BYTES:
            half = by.get((part, hosts, size, "farandole_bf16"))
            found += targets_of_reduction(row, half)
        if part == "steps" and hosts == STEP_LAYOUT and "of_bound" in row:
            name = f"{layout_text(hosts)}, DDP step <= {MOST_OF_BOUND}x of compute or plain TCP"
            ratio = row["of_bound"]
            found.append((name, f"{ratio:.3f}x, {verdict(ratio, MOST_OF_BOUND)}"))
        if part == "formation" and (most := MOST_FORMATION_MS.get(len(hosts_of(hosts)))):
            name = f"{layout_text(hosts)}: init_process_group() <= {most} ms"
            found.append((name, f"{row['median_ms']:.0f} ms, {verdict(row['median_ms'], most)}"))
    return found


def targets_of_reduction(row: Row, half: Row | None) -> list[Target]:
    """Of 16 MiB; `half`: of the same layout in bfloat16."""
    found: list[Target] = []
    layout, least = layout_text(row["hosts"]), LEAST_OF_RAW.get(row["hosts"])
    if least is not None and "of_raw" in row:
        state = f"{row['of_raw']:.3f}, {verdict(least, row['of_raw'])}"
        found.append((f"{layout}, 16 MiB: >= {least} of plain TCP", state))
    if half is not None:
        ratio = row["median_ms"] / half["median_ms"]
        state = f"{ratio:.2f}x, {verdict(LEAST_BF16, ratio)}"
        found.append((f"{layout}, 16 MiB: bfloat16 >= {LEAST_BF16}x faster", state))
    return found
