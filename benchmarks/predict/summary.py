# SPDX-License-Identifier: Apache-2.0
"""The results of predict.jsonl as docs/benchmarks.md has them. Needs no torch."""

from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import Column, field, lines_of, markdown

FILE = "predict.jsonl"
MODELS = {
    "transformer": "transformer, 3.7 M parameters",
    "resnet": "ResNet, 2.1 M parameters",
    "perceptron": "perceptron, 4.5 M parameters",
}


def summary(rows: list[Row]) -> str:
    """Markdown: a line a case."""
    columns: list[Column] = [
        ("Training step", lambda row: MODELS[row["model"]]),
        ("hosts", field("hosts")),
        ("network", lambda row: rate_text(row["rate"])),
        ("no communication", field("alone_ms", ".0f", " ms")),
        ("predicted", field("predicted_ms", ".0f", " ms")),
        ("5 % to 95 %", interval_text),
        ("measured", field("median_ms", ".0f", " ms")),
        ("error", lambda row: f"{100 * row['error']:+.1f} %"),
    ]
    return markdown(lines_of(rows, columns), left=(0, 2))


def rate_text(rate: str) -> str:
    """As prose has it."""
    return rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")


def interval_text(row: Row) -> str:
    """Of the prediction."""
    low, high = row["predicted_interval_ms"]
    return f"{low:.0f} to {high:.0f} ms"


SECTION = Section(
    FILE,
    "Steps that `farandole bench predict` predicts for emulated hosts with one rank each, beside "
    "measured ones, all on the {cores} cores of one machine, commit {commit}, {date}. All rows are "
    "in [predict.jsonl](../benchmarks/results/predict.jsonl).",
    summary,
)
