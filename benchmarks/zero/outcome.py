# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.targets import Target, verdict
from benchmarks.zero.lanes import LANES
from benchmarks.zero.summary import first_of_lanes
from benchmarks.zero.tasks import TASKS

MOST_OF_LOCAL = {"ours_full": 0.97, "ours_shard": 0.94}
MOST_OF_STATE = 1.01  # of an equal part


def label(row: Row) -> str:
    """As tables have the lane."""
    return LANES[row["lane"]].label


TIMES: list[tables.Column] = [  # medians; bytes of a rank
    ("", label),
    *tables.MEDIAN_AND_P95,
    ("x local", tables.field("ratio", ".3f")),
    ("quartiles", tables.quartiles()),
    ("backward ms", tables.field("backward_ms", ".2f")),
    ("step() ms", tables.field("update_ms", ".2f")),
    ("moved MiB", tables.mib("moved_bytes", 2)),
    ("state MiB", tables.mib("state_bytes", 2)),
    ("predicted", tables.mib("predicted_state_bytes", 2)),
]
MEMORY: list[tables.Column] = [  # in use; in the last three also what was freed and glibc has kept
    ("", label),
    ("steady MiB", tables.mib("live_steady_bytes", 1)),
    ("predicted", tables.mib("predicted_steady_bytes", 1)),
    ("peak", tables.mib("live_last_peak_bytes", 1)),
    ("of all steps", tables.mib("live_peak_bytes", 1)),
    ("steady, freed too", tables.mib("steady_bytes", 1)),
    ("peak, freed too", tables.mib("peak_bytes", 1)),
    ("resident", tables.mib("resident_bytes", 1)),
]
KERNEL: list[tables.Column] = [  # of all loops; bytes read and written, per second
    ("processes", tables.field("processes")),
    *tables.MEDIAN_AND_P95,
    ("GB/s", tables.field("gb_s", ".2f")),
    ("of memcpy's", tables.field("of_memcpy", ".2f")),
]


def table(rows: list[Row]) -> str:
    """One line a lane of one task, number of ranks and part."""
    first = rows[0]
    if first["part"] == "kernel":
        head = f"one step of AdamW, {first['elements']:,} elements"
        ends = ("", tables.field("lane")), ("quartiles of time", tables.quartiles())
        return tables.titled(head, rows, [ends[0], *KERNEL, ends[1]])
    head = f"{TASKS[first['task']].title}, {first['ranks']} ranks"
    if first["part"] == "memory":
        return tables.titled(f"{head}, memory of a rank", rows, MEMORY)
    return tables.titled(f"{head}, forward, backward and step()", first_of_lanes(rows), TIMES)


def targets(rows: list[Row]) -> list[Target]:
    """Each target that this run can judge, and what became of it."""
    lines = []
    for row in rows:
        if row["part"] != "times" or row["lane"] not in MOST_OF_LOCAL:
            continue
        what = f"{TASKS[row['task']].title}, {row['ranks']} ranks, {LANES[row['lane']].label}"
        most = MOST_OF_LOCAL[row["lane"]]
        if row["ranks"] == 2 and "ratio" in row:
            ratio = row["ratio"]
            state = f"{ratio:.3f}x, {verdict(ratio, most)}"
            lines.append((f"{what}: step <= {most}x without communication", state))
        share = row["state_bytes"] / row["predicted_state_bytes"]
        state = f"{share:.4f}x, {verdict(share, MOST_OF_STATE)}"
        lines.append((f"{what}: state <= {MOST_OF_STATE}x an equal part", state))
    return lines
