# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from models import TASKS
from operations import MIB
from report import columns, verdict
from rounds import Row
from summary import LABELS

TIME_HEADS = ["", "median ms", "p95", "x without DDP", "quartiles", "exposed ms", "by stats()"]
TIME_HEADS += ["latest rank", "scaling"]


def label(lane: str) -> str:
    """As tables have it."""
    name, _, mib = lane.partition("@")
    return f"{LABELS[name]}, buckets of {mib} MiB" if mib else LABELS[name]


def table(rows: list[Row]) -> str:
    """One line a lane of one task and part."""
    task, part = rows[0]["task"], rows[0]["part"]
    ranks = TASKS[task].ranks
    head = f"{TASKS[task].title}, {ranks} rank{'s' * (ranks > 1)}"
    if part == "memory":
        return f"{head}, peak memory of a rank beyond its model\n{columns(memory_lines(rows))}"
    return f"{head}, forward and backward\n{columns(time_lines(rows))}"


def time_lines(rows: list[Row]) -> list[list[str]]:
    """Medians, and what is beyond a step without DDP."""
    lines = [TIME_HEADS]
    for row in rows:
        quartiles = row.get("ratio_quartiles")
        lines.append(
            [
                label(row["lane"]),
                f"{row['median_ms']:.2f}",
                f"{row['p95_ms']:.2f}",
                number(row, "ratio", 3),
                f"{quartiles[0]:.3f} to {quartiles[1]:.3f}" if quartiles else "",
                number(row, "exposed_ms", 2),
                number(row, "stats_exposed_ms", 2),
                number(row, "latest_stats_exposed_ms", 2),
                number(row, "efficiency", 3),
            ]
        )
    return lines


def memory_lines(rows: list[Row]) -> list[list[str]]:
    """Shared pages counted once; in the last column each rank's in full, as the kernel counts."""
    keys = ["peak_bytes", "last_peak_bytes", "live_peak_bytes", "live_last_peak_bytes"]
    keys.append("resident_bytes")
    lines = [["", "peak MiB", "of last step", "in use", "of last step", "resident MiB"]]
    for row in rows:
        lines.append([label(row["lane"]), *(f"{row[key] / MIB:.1f}" for key in keys)])
    return lines


def number(row: Row, key: str, digits: int) -> str:
    """Empty where there is none."""
    return f"{row[key]:.{digits}f}" if key in row else ""


def targets(rows: list[Row]) -> list[tuple[str, str]]:
    """Each target that this run can judge, and what became of it."""
    cells = {(row["task"], row["lane"]): row for row in rows if row["part"] == "times"}
    lines = []
    for task in ("transformer", "resnet50"):
        if ratio := cells.get((task, "farandole"), {}).get("ratio"):
            name = f"{TASKS[task].title}: forward + backward <= 1.01x without DDP"
            lines.append((name, f"{ratio:.3f}x, {verdict(ratio <= 1.01, ratio / 1.01)}"))
    ours = cells.get(("tiny", "farandole"), {}).get("exposed_ms")
    peer = cells.get(("tiny", "torch_gloo_view"), {}).get("exposed_ms")
    if ours is not None and peer:
        name = f"{TASKS['tiny'].title}: overhead <= 0.5x torch's over gloo"
        state = f"{ours / peer:.2f}x, {verdict(ours <= peer / 2, 2 * ours / peer)}"
        lines.append((name, f"{state} ({ours:.2f} ms, torch's {peer:.2f} ms)"))
    return lines + memory_targets(rows)


def memory_targets(rows: list[Row]) -> list[tuple[str, str]]:
    """Peaks against those of torch's DDP over gloo with gradients in its buckets."""
    cells = {(row["task"], row["lane"]): row for row in rows if row["part"] == "memory"}
    lines = []
    for task in ("transformer", "resnet50"):
        for key, what in (("peak_bytes", "peak memory"), ("live_peak_bytes", "in use of it")):
            ours = cells.get((task, "farandole"), {}).get(key)
            peer = cells.get((task, "torch_gloo_view"), {}).get(key)
            if ours and peer:
                name = f"{TASKS[task].title}: {what} <= torch's with bucket views"
                state = f"{ours / MIB:.0f} MiB, torch's {peer / MIB:.0f} MiB"
                lines.append((name, f"{state}, {verdict(ours <= peer, ours / peer)}"))
    return lines
