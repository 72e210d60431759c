# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from farandole.bench.sizes import MIB

from benchmarks.ddp.models import TASKS
from benchmarks.ddp.summary import LABELS
from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.targets import Target, verdict


def label(row: Row) -> str:
    """As tables have the lane."""
    name, _, mib = row["lane"].partition("@")
    return f"{LABELS[name]}, buckets of {mib} MiB" if mib else LABELS[name]


TIMES: list[tables.Column] = [  # medians, and what is beyond a step without DDP
    ("", label),
    *tables.MEDIAN_AND_P95,
    ("x without DDP", tables.field("ratio", ".3f")),
    ("quartiles", tables.quartiles()),
    ("exposed ms", tables.field("exposed_ms", ".2f")),
    ("by stats()", tables.field("stats_exposed_ms", ".2f")),
    ("latest rank", tables.field("latest_stats_exposed_ms", ".2f")),
    ("scaling", tables.field("efficiency", ".3f")),
]
MEMORY: list[tables.Column] = [  # shared pages once; last, in full for each rank
    ("", label),
    ("peak MiB", tables.mib("peak_bytes", 1)),
    ("of last step", tables.mib("last_peak_bytes", 1)),
    ("in use", tables.mib("live_peak_bytes", 1)),
    ("of last step", tables.mib("live_last_peak_bytes", 1)),
    ("resident MiB", tables.mib("resident_bytes", 1)),
]


def table(rows: list[Row]) -> str:
    """One line a lane of one task and part."""
    task = TASKS[rows[0]["task"]]
    head = f"{task.title}, {task.ranks} rank{'s' * (task.ranks > 1)}"
    if rows[0]["part"] == "memory":
        return tables.titled(f"{head}, peak memory of a rank beyond its model", rows, MEMORY)
    return tables.titled(f"{head}, forward and backward", rows, TIMES)


def targets(rows: list[Row]) -> list[Target]:
    """Each target that this run can judge, and what became of it."""
    cells = {(row["task"], row["lane"]): row for row in rows if row["part"] == "times"}
    lines = []
    for task in ("transformer", "resnet50"):
        if ratio := cells.get((task, "farandole"), {}).get("ratio"):
            name = f"{TASKS[task].title}: forward + backward <= 1.01x without DDP"
            lines.append((name, f"{ratio:.3f}x, {verdict(ratio, 1.01)}"))
    ours = cells.get(("tiny", "farandole"), {}).get("exposed_ms")
    peer = cells.get(("tiny", "torch_gloo_view"), {}).get("exposed_ms")
    if ours is not None and peer:
        name = f"{TASKS['tiny'].title}: overhead <= 0.5x torch's over gloo"
        state = f"{ours / peer:.2f}x, {verdict(ours, peer / 2)}"
        lines.append((name, f"{state} ({ours:.2f} ms, torch's {peer:.2f} ms)"))
    return lines + memory_targets(rows)


def memory_targets(rows: list[Row]) -> list[Target]:
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
                lines.append((name, f"{state}, {verdict(ours, peer)}"))
    return lines
