# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from farandole.bench.sizes import MIB

from benchmarks.checkpoint.lanes import LANES, PARTS
from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.targets import Target, verdict

MOST_OF_RAW = {"save": 1 / 0.9, "load": 1 / 0.9, "stall": 1.2}
MOST_MORE_BYTES = 64 * MIB
TIMES: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    ("median ms", tables.field("median_ms", ".1f")),
    ("MB/s, all ranks", tables.field("mb_s", ".0f")),
    ("time / raw", tables.field("of_raw", ".2f")),
    ("time / ours", tables.field("of_ours", ".2f")),
]
MEMORY: list[tables.Column] = [
    ("", lambda row: LANES[row["lane"]]),
    ("save MiB", tables.mib("save_bytes", 0)),
    ("load MiB", tables.mib("load_bytes", 0)),
    ("the rank's state MiB", tables.mib("state_bytes", 0)),
]


def table(rows: list[Row]) -> str:
    """One line a lane of one part."""
    first = rows[0]
    head = f"{first['parameters'] / 1e6:.1f} M parameters and AdamW, {first['ranks']} ranks"
    columns = MEMORY if first["part"] == "memory" else TIMES
    return tables.titled(f"{first['part']}, {PARTS[first['part']]}; {head}", rows, columns)


def targets(rows: list[Row]) -> list[Target]:
    """Each target that this run can judge, and what became of it."""
    lines = []
    for row in rows:
        if row["lane"] == "farandole" and row["part"] in MOST_OF_RAW and "of_raw" in row:
            most = MOST_OF_RAW[row["part"]]
            what = "a copy" if row["part"] == "stall" else "the disk or page cache"
            name = f"{row['part']}, {row['task']}: <= {most:.2f}x of {what}"
            lines.append((name, f"{row['of_raw']:.2f}x, {verdict(row['of_raw'], most)}"))
        if row["lane"] == "farandole" and row["part"] == "memory":
            most = row["state_bytes"] + MOST_MORE_BYTES
            for part in ("save", "load"):
                own = row[f"{part}_bytes"]
                text = f"{own / MIB:.0f} MiB, {verdict(own, most)}"
                lines.append((f"memory of a {part}, {row['task']}: state + 64 MiB", text))
    return lines
