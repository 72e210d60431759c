# SPDX-License-Identifier: Apache-2.0
"""The results of amp.jsonl as docs/benchmarks.md has them. Needs no torch."""

from amp_lanes import UNSCALING, WIRE
from report import Row, markdown
from zero_lanes import SCALERS, lane_of

HEADS = ["scaler", "step without", "with", "ratio", "middle half", "rounds"]


def summary(rows: list[Row]) -> str:
    """Markdown: steps, then a sentence about each of the rest."""
    kernels = [row for row in rows if row["part"] == "kernel"]
    sent = {row["lane"]: row for row in rows if row["part"] == "wire"}
    times = [row for row in rows if row["part"] == "times"]
    parts = [table(times) if times else "", kernel_text(kernels) if kernels else ""]
    parts.append(wire_text(sent) if sent else "")
    return "\n\n".join(part for part in parts if part)


def table(rows: list[Row]) -> str:
    """Markdown: one line a lane with a scaler."""
    lines = [["Transformer, 33.6 M parameters, 2 ranks", *HEADS]]
    lines.append(["---", "---", *["---:"] * (len(HEADS) - 1)])
    baselines = {(row["lane"], row["set"]): row for row in rows}
    for row in rows:
        baseline, _, scaler = row["lane"].partition("+")
        if not scaler:
            continue
        low, high = row["ratio_quartiles"]
        lines.append(
            [
                lane_of(baseline).label,
                SCALERS[scaler],
                f"{baselines[baseline, row['set']]['median_ms']:.0f} ms",
                f"{row['median_ms']:.0f} ms",
                f"{row['ratio']:.3f}x",
                f"{low:.3f}x to {high:.3f}x",
                f"{row['steps']}",
            ]
        )
    return markdown(lines)


def kernel_text(rows: list[Row]) -> str:
    """One sentence."""
    cells: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        cell = f"{UNSCALING[row['lane']]} {row['gb_s']:.1f}"
        cells.setdefault((row["dtype"], row["processes"]), []).append(cell)
    parts = [
        f"{dtype} in {processes} process{'es' * (processes > 1)} at once: {', '.join(each)}"
        for (dtype, processes), each in cells.items()
    ]
    elements = rows[0]["elements"]
    return f"Dividing and checking {elements:,} gradients, in GB/s: {'; '.join(parts)}."


def wire_text(sent: dict[str, Row]) -> str:
    """One sentence."""
    parts = []
    for lane, row in sent.items():
        if "bytes_ratio" in row:
            loss = f"loss {row['loss']:.4f} ({row['loss_percent']:+.4f} %)"
            parts.append(f"{WIRE[lane]} {row['bytes_ratio']:.3f}x the bytes, {loss}")
    row = next(iter(sent.values()))
    return (
        f"Gradients in bfloat16 over gloo, {row['steps']} steps of a transformer with "
        f"{row['parameters']:,} parameters, against float32: {'; '.join(parts)}."
    )
