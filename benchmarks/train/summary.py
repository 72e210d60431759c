# SPDX-License-Identifier: Apache-2.0
"""The results of bench_train.jsonl as docs/benchmarks.md has them. Needs no torch."""

from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import markdown

FILE = "bench_train.jsonl"
TITLES = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "vit_s": "ViT-S",
    "vit_b": "ViT-B",
    "gpt2_small": "GPT-2 small",
    "gpt2_medium": "GPT-2 medium",
    "mlp2000": "MLP of 2,000 tensors",
}
LANES = {
    "ours": "Farandole",
    "zero": "with ZeRO-1",
    "torch": "torch's DDP",
    "limit": "no communication",
    "single": "one process",
}


def summary(rows: list[Row]) -> str:
    """A line for each model: the medians, with the half of the steps in the middle."""
    lines = [["ms a step", *LANES.values(), "Farandole's best / no communication"]]
    for model, title in TITLES.items():
        cells = {row["lane"]: row for row in rows if row["model"] == model}
        if {"ours", "zero", "limit"} <= cells.keys():
            best = min(cells[lane]["median_ms"] for lane in ("ours", "zero"))
            ratio = best / cells["limit"]["median_ms"]
            lines.append([title, *(_times(cells.get(lane)) for lane in LANES), f"{ratio:.2f}x"])
    return markdown(lines)


def _times(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = row["quartiles_ms"]
    return f"{row['median_ms']:.0f} ({low:.0f} to {high:.0f})"


SECTION = Section(
    FILE,
    "`farandole bench train` of its models: forward, backward and AdamW on two ranks of one "
    "thread, beside torch's DDP on the same group, two processes that never communicate, and one "
    "process with both cores at the same global batch, {date}. In parentheses the middle half of "
    "the steps. All rows are in [bench_train.jsonl](../benchmarks/results/bench_train.jsonl).",
    summary,
)
