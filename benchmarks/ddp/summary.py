# SPDX-License-Identifier: Apache-2.0
"""The results of ddp.jsonl as docs/benchmarks.md has them. Needs no torch."""

from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import field, lines_of, markdown, mib, quartiles

FILE = "ddp.jsonl"
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


def summary(rows: list[Row]) -> str:
    """Markdown: a table of each model, one line a lane; empty if nothing was measured."""
    tables = [table(rows, task) for task in MODELS]
    return "\n\n".join(text for text in tables if text)


def table(rows: list[Row], task: str) -> str:
    """Markdown; empty if the model was not measured."""
    rows = [row for row in rows if row["task"] == task]
    peaks = {row["lane"]: row for row in rows if row["part"] == "memory"}
    times = [row for row in rows if row["part"] == "times"]
    if not times:
        return ""
    peak = mib("peak_bytes", 0, " MiB")
    table = [
        (MODELS[task], lambda row: LABELS[row["lane"]]),
        ("forward and backward", field("median_ms", ".1f", " ms")),
        ("against no DDP", field("ratio", ".3f", "x")),
        ("middle half", quartiles(after="x")),
        ("scaling", field("efficiency", ".3f")),
        ("peak memory", lambda row: peak(peaks.get(row["lane"], {}))),
    ]
    return markdown(lines_of(times, table))


SECTION = Section(
    FILE,
    "Training steps with DistributedDataParallel, one thread a rank, commit {commit}, {date}. "
    "Scaling is the throughput of both ranks over twice that of one alone; without DDP it is what "
    "the machine allows. All rows are in [ddp.jsonl](../benchmarks/results/ddp.jsonl).",
    summary,
)
