# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and which targets were reached."""

from amp_lanes import UNSCALING, WIRE
from measure import uncertainty
from operations import KIB
from outcome import quartiles
from report import columns, verdict
from rounds import Row
from tasks import TASKS
from zero_lanes import lane_of

MOST_OF_UNSCALED = {"ours_full+scaler": 1.02, "ours_shard+scaler": 1.02}
TORCH_SCALED = "torch_ddp+torch_scaler"
HALVED = ["ours_hook", "ours_wire"]
MOST_OF_BYTES = 0.51  # of float32's: half, and what ranks tell each other
MOST_LOSS_PERCENT = 0.5
TIME_HEADS = ["", "median ms", "p95", "x without", "quartiles", "more ms"]
TIME_HEADS += ["backward ms", "step() ms"]
KERNEL_HEADS = ["", "processes", "median ms", "p95", "GB/s", "of memcpy's", "of torch's kernel's"]
WIRE_HEADS = ["", "KiB a step", "of float32's", "loss before", "after", "against float32's"]


def table(rows: list[Row]) -> str:
    """One line a lane of one part."""
    first = rows[0]
    if first["part"] == "kernel":
        what = f"{first['elements']:,} gradients of {first['dtype']}, divided and checked"
        return f"{what}\n{columns(kernel_lines(rows))}"
    if first["part"] == "wire":
        what = f"{first['steps']} steps of a transformer with {first['parameters']:,} parameters"
        return f"{what}, {first['ranks']} ranks over gloo\n{columns(wire_lines(rows))}"
    head = f"{TASKS[first['task']].title}, {first['ranks']} ranks"
    return f"{head}, forward, backward and step()\n{columns(time_lines(rows))}"


def time_lines(rows: list[Row]) -> list[list[str]]:
    """Medians, and what is beyond a step without a scaler."""
    lines = [TIME_HEADS]
    for row in rows:
        lines.append(
            [
                lane_of(row["lane"]).label,
                f"{row['median_ms']:.2f}",
                f"{row['p95_ms']:.2f}",
                number(row, "ratio", ".4f"),
                quartiles(row),
                number(row, "exposed_ms", "+.2f"),
                f"{row['backward_ms']:.2f}",
                f"{row['update_ms']:.2f}",
            ]
        )
    return lines


def kernel_lines(rows: list[Row]) -> list[list[str]]:
    """Bytes read and written, per second."""
    lines = [KERNEL_HEADS]
    for row in rows:
        times = [f"{row[key]:.2f}" for key in ("median_ms", "p95_ms", "gb_s")]
        of_others = [number(row, key, ".2f") for key in ("of_memcpy", "of_peer")]
        lines.append([UNSCALING[row["lane"]], str(row["processes"]), *times, *of_others])
    return lines


def wire_lines(rows: list[Row]) -> list[list[str]]:
    """Bytes that come to a rank."""
    lines = [WIRE_HEADS]
    for row in rows:
        losses = [f"{row[key]:.5f}" for key in ("loss_before", "loss")]
        percent = f"{row['loss_percent']:+.4f} %" if "loss_percent" in row else ""
        sizes = [f"{row['bytes'] / KIB:.2f}", number(row, "bytes_ratio", ".4f")]
        lines.append([WIRE[row["lane"]], *sizes, *losses, percent])
    return lines


def number(row: Row, key: str, form: str) -> str:
    """Empty where there is none."""
    return format(row[key], form) if key in row else ""


def targets(rows: list[Row]) -> list[tuple[str, str]]:
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
    return f"{ratio:.3f}x, {verdict(ratio <= most, ratio / most)}"


def beside(row: Row | None) -> str:
    """What torch's costs."""
    return f" (torch's DDP, AdamW and GradScaler {row['ratio']:.3f}x)" if row is not None else ""


def wire_targets(row: Row) -> list[tuple[str, str]]:
    """Bytes and loss."""
    part, percent = row["bytes_ratio"], abs(row["loss_percent"])
    sent = f"{part:.4f}x, {verdict(part <= MOST_OF_BYTES, part / MOST_OF_BYTES)}"
    loss = f"{percent:.3f} %, {verdict(percent <= MOST_LOSS_PERCENT, percent / MOST_LOSS_PERCENT)}"
    name = WIRE[row["lane"]]
    return [
        (f"{name}: bytes <= {MOST_OF_BYTES}x float32's", sent),
        (f"{name}: loss within {MOST_LOSS_PERCENT} % of float32's", loss),
    ]
