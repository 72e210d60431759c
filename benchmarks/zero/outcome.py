# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from operations import MIB
from report import columns, verdict
from rounds import Row
from tasks import TASKS
from zero_lanes import LANES
from zero_summary import first_of_lanes

MOST_OF_LOCAL = {"ours_full": 0.97, "ours_shard": 0.94}
MOST_OF_STATE = 1.01  # of an equal part
TIME_HEADS = ["", "median ms", "p95", "x local", "quartiles", "backward ms", "step() ms"]
TIME_HEADS += ["moved MiB", "state MiB", "predicted"]
MEMORY_KEYS = ["live_steady_bytes", "predicted_steady_bytes", "live_last_peak_bytes"]
MEMORY_KEYS += ["live_peak_bytes", "steady_bytes", "peak_bytes", "resident_bytes"]
MEMORY_HEADS = ["", "steady MiB", "predicted", "peak", "of all steps"]
MEMORY_HEADS += ["steady, freed too", "peak, freed too", "resident"]
KERNEL_HEADS = ["", "processes", "median ms", "p95", "GB/s", "of memcpy's", "quartiles of time"]


def table(rows: list[Row]) -> str:
    """One line a lane of one task, number of ranks and part."""
    part, ranks = rows[0]["part"], rows[0]["ranks"]
    if part == "kernel":
        elements = rows[0]["elements"]
        return f"one step of AdamW, {elements:,} elements\n{columns(kernel_lines(rows))}"
    head = f"{TASKS[rows[0]['task']].title}, {ranks} ranks"
    if part == "memory":
        return f"{head}, memory of a rank\n{columns(memory_lines(rows))}"
    return f"{head}, forward, backward and step()\n{columns(time_lines(rows))}"


def time_lines(rows: list[Row]) -> list[list[str]]:
    """Medians; bytes of a rank."""
    lines = [TIME_HEADS]
    for row in first_of_lanes(rows):
        sizes = ["moved_bytes", "state_bytes", "predicted_state_bytes"]
        lines.append(
            [
                LANES[row["lane"]].label,
                f"{row['median_ms']:.2f}",
                f"{row['p95_ms']:.2f}",
                f"{row['ratio']:.3f}" if "ratio" in row else "",
                quartiles(row),
                f"{row['backward_ms']:.2f}",
                f"{row['update_ms']:.2f}",
                *(f"{row[size] / MIB:.2f}" for size in sizes),
            ]
        )
    return lines


def memory_lines(rows: list[Row]) -> list[list[str]]:
    """What is in use; in the last three columns also what was freed and glibc has kept."""
    lines = [MEMORY_HEADS]
    for row in rows:
        cells = (f"{row[key] / MIB:.1f}" for key in MEMORY_KEYS)
        lines.append([LANES[row["lane"]].label, *cells])
    return lines


def kernel_lines(rows: list[Row]) -> list[list[str]]:
    """Bytes read and written, per second."""
    lines = [KERNEL_HEADS]
    for row in rows:
        of_memcpy = f"{row['of_memcpy']:.2f}" if "of_memcpy" in row else ""
        times = [f"{row[key]:.2f}" for key in ("median_ms", "p95_ms")]
        name = [row["lane"], str(row["processes"])]
        lines.append([*name, *times, f"{row['gb_s']:.2f}", of_memcpy, quartiles(row)])
    return lines


def quartiles(row: Row) -> str:
    """Of the ratio; empty where there is none."""
    if "ratio_quartiles" not in row:
        return ""
    low, high = row["ratio_quartiles"]
    return f"{low:.3f} to {high:.3f}"


def targets(rows: list[Row]) -> list[tuple[str, str]]:
    """Each target that this run can judge, and what became of it."""
    lines = []
    for row in rows:
        if row["part"] != "times" or row["lane"] not in MOST_OF_LOCAL:
            continue
        what = f"{TASKS[row['task']].title}, {row['ranks']} ranks, {LANES[row['lane']].label}"
        most = MOST_OF_LOCAL[row["lane"]]
        if row["ranks"] == 2 and "ratio" in row:
            ratio = row["ratio"]
            state = f"{ratio:.3f}x, {verdict(ratio <= most, ratio / most)}"
            lines.append((f"{what}: step <= {most}x without communication", state))
        share = row["state_bytes"] / row["predicted_state_bytes"]
        state = f"{share:.4f}x, {verdict(share <= MOST_OF_STATE, share / MOST_OF_STATE)}"
        lines.append((f"{what}: state <= {MOST_OF_STATE}x an equal part", state))
    return lines
