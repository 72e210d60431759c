# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from farandole.bench.sizes import KIB

from benchmarks.amp.lanes import UNSCALING, WIRE
from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import uncertainty
from benchmarks.harness.targets import Target, verdict
from benchmarks.zero import outcome as zero
from benchmarks.zero.lanes import lane_of
from benchmarks.zero.tasks import TASKS

MOST_OF_UNSCALED = {"ours_full+scaler": 1.02, "ours_shard+scaler": 1.02}
TORCH_SCALED = "torch_ddp+torch_scaler"
HALVED = ["ours_hook", "ours_wire"]
MOST_OF_BYTES = 0.51  # of float32's: half, and what ranks tell each other
MOST_LOSS_PERCENT = 0.5
TIMES: list[tables.Column] = [  # medians, and what is beyond a step without a scaler
    ("", lambda row: lane_of(row["lane"]).label),
    *tables.MEDIAN_AND_P95,
    ("x without", tables.field("ratio", ".4f")),
    ("quartiles", tables.quartiles()),
    ("more ms", tables.field("exposed_ms", "+.2f")),
    ("backward ms", tables.field("backward_ms", ".2f")),
    ("step() ms", tables.field("update_ms", ".2f")),
]
KERNEL: list[tables.Column] = [
    ("", lambda row: UNSCALING[row["lane"]]),
    *zero.KERNEL,
    ("of torch's kernel's", tables.field("of_peer", ".2f")),
]
SENT: list[tables.Column] = [  # bytes that come to a rank
    ("", lambda row: WIRE[row["lane"]]),
    ("KiB a step", lambda row: f"{row['bytes'] / KIB:.2f}"),
    ("of float32's", tables.field("bytes_ratio", ".4f")),
    ("loss before", tables.field("loss_before", ".5f")),
    ("after", tables.field("loss", ".5f")),
    ("against float32's", tables.field("loss_percent", "+.4f", " %")),
]


def table(rows: list[Row]) -> str:
    """One line a lane of one part."""
    first = rows[0]
    if first["part"] == "kernel":
        what = f"{first['elements']:,} gradients of {first['dtype']}, divided and checked"
        return tables.titled(what, rows, KERNEL)
    if first["part"] == "wire":
        what = f"{first['steps']} steps of a transformer with {first['parameters']:,} parameters"
        return tables.titled(f"{what}, {first['ranks']} ranks over gloo", rows, SENT)
    head = f"{TASKS[first['task']].title}, {first['ranks']} ranks"
    return tables.titled(f"{head}, forward, backward and step()", rows, TIMES)


def targets(rows: list[Row]) -> list[Target]:
    """Each target that this run can judge, and what became of it."""
    times = {row["lane"]: row for row in rows if row["part"] == "times" and "ratio" in row}
    lines = []
    for lane, most in MOST_OF_UNSCALED.items():
        if lane in times:
            name = f"{lane_of(lane).label}: step <= {most}x without"
            lines.append((name, time_state(times[lane], most) + beside(times.get(TORCH_SCALED))))
    for row in rows:
        if row["part"] == "wire" and row["lane"] in HALVED:
            lines += wire_targets(row)
    return lines


def time_state(row: Row, most: float) -> str:
    """Nothing is said where the rounds differ too much to tell."""
    ratio = row["ratio"]
    doubt = uncertainty(row["ratio_quartiles"], row["steps"])
    if doubt > most - 1:
        return f"{ratio:.3f}x, cannot be told: it is uncertain by {doubt:.3f}"
    return f"{ratio:.3f}x, {verdict(ratio, most)}"


def beside(row: Row | None) -> str:
    """What torch's costs."""
    return f" (torch's DDP, AdamW and GradScaler {row['ratio']:.3f}x)" if row is not None else ""


def wire_targets(row: Row) -> list[Target]:
    """Bytes and loss."""
    part, percent = row["bytes_ratio"], abs(row["loss_percent"])
    sent = f"{part:.4f}x, {verdict(part, MOST_OF_BYTES)}"
    loss = f"{percent:.3f} %, {verdict(percent, MOST_LOSS_PERCENT)}"
    name = WIRE[row["lane"]]
    return [
        (f"{name}: bytes <= {MOST_OF_BYTES}x float32's", sent),
        (f"{name}: loss within {MOST_LOSS_PERCENT} % of float32's", loss),
    ]
