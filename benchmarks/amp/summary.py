# SPDX-License-Identifier: Apache-2.0
"""The results of amp.jsonl as docs/benchmarks.md has them. Needs no torch."""

from benchmarks.amp.lanes import UNSCALING, WIRE
from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import field, lines_of, markdown, quartiles
from benchmarks.zero.lanes import SCALERS, lane_of

FILE = "amp.jsonl"


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
    medians = {(row["lane"], row["set"]): row["median_ms"] for row in rows}
    scaled = []
    for row in rows:
        baseline, _, scaler = row["lane"].partition("+")
        if scaler:
            names = {"label": lane_of(baseline).label, "scaler": SCALERS[scaler]}
            scaled.append({**row, **names, "without_ms": medians[baseline, row["set"]]})
    table = [
        ("Transformer, 33.6 M parameters, 2 ranks", field("label")),
        ("scaler", field("scaler")),
        ("step without", field("without_ms", ".0f", " ms")),
        ("with", field("median_ms", ".0f", " ms")),
        ("ratio", field("ratio", ".3f", "x")),
        ("middle half", quartiles(after="x")),
        ("rounds", field("steps")),
    ]
    return markdown(lines_of(scaled, table), left=(0, 1))


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


SECTION = Section(
    FILE,
    "Training steps with a GradScaler and without (models in float32, AdamW, one thread a "
    "rank, on {cores} cores), commit {commit}, {date}. All "
    "rows are in [amp.jsonl](../benchmarks/results/amp.jsonl).",
    summary,
)
