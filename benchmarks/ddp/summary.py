# SPDX-License-Identifier: Apache-2.0
"""The results of ddp.jsonl as docs/benchmarks.md has them. Needs no torch."""

from operations import MIB
from report import Row, markdown

LABELS = {
    "alone": "without DDP, one rank alone",
    "local": "without DDP",
    "farandole": "Farandole",
    "torch_gloo_view": "torch over gloo, bucket views",
    "torch_gloo": "torch over gloo",
    "torch_farandole": "torch over Farandole, bucket views",
    "farandole_copied": "Farandole, gradients copied",
}
MODELS = {
    "transformer": "Transformer, 33.6 M parameters, 2 ranks",
    "resnet50": "ResNet-50, 25.6 M parameters, 2 ranks",
    "tiny": "2,000 tiny parameters, 1 rank",
}
HEADS = ["forward and backward", "against no DDP", "middle half", "scaling", "peak memory"]


def summary(rows: list[Row]) -> str:
    """Markdown: a table of each model, one line a lane; empty if nothing was measured."""
    tables = [table(rows, task) for task in MODELS]
    return "\n\n".join(text for text in tables if text)


def table(rows: list[Row], task: str) -> str:
    """Markdown; empty if the model was not measured."""
    rows = [row for row in rows if row["task"] == task]
    times = [row for row in rows if row["part"] == "times"]
    peaks = {row["lane"]: row["peak_bytes"] for row in rows if row["part"] == "memory"}
    if not times:
        return ""
    lines = [[MODELS[task], *HEADS], ["---", *["---:"] * len(HEADS)]]
    for row in times:
        lane = row["lane"]
        ratio = f"{row['ratio']:.3f}x" if "ratio" in row else ""
        low, high = row.get("ratio_quartiles", (None, None))
        half = f"{low:.3f}x to {high:.3f}x" if low is not None else ""
        scaling = f"{row['efficiency']:.3f}" if "efficiency" in row else ""
        peak = f"{peaks[lane] / MIB:.0f} MiB" if lane in peaks else ""
        lines.append([LABELS[lane], f"{row['median_ms']:.1f} ms", ratio, half, scaling, peak])
    return markdown(lines)
