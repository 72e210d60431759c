# SPDX-License-Identifier: Apache-2.0
"""The results of horovod.jsonl as docs/benchmarks.md has them. Needs no torch."""

from farandole.bench.sizes import size_text

from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import Column, field, lines_of, markdown, quartiles, time_text
from benchmarks.horovod.lanes import ALL_REDUCES, STEPS, TASKS

FILE = "horovod.jsonl"


def summary(rows: list[Row]) -> str:
    """Markdown: averages by size, then a table of each model."""
    reduced = [row for row in rows if row["part"] == "all_reduce"]
    tables = [all_reduce_table(reduced)] if reduced else []
    tables += [step_table([row for row in rows if row.get("task") == task]) for task in TASKS]
    return "\n\n".join(table for table in tables if table)


def all_reduce_table(rows: list[Row]) -> str:
    """One line a size, one column a lane."""
    lines = [["average of", *ALL_REDUCES.values()]]
    for size in sorted({row["bytes"] for row in rows}):
        cells = {row["lane"]: row["median_us"] for row in rows if row["bytes"] == size}
        lines.append([size_text(size), *(time_text(cells.get(lane)) for lane in ALL_REDUCES)])
    return markdown(lines)


def step_table(rows: list[Row]) -> str:
    """One line a lane; empty if the model was not measured."""
    if not rows:
        return ""
    table: list[Column] = [
        (TASKS[rows[0]["task"]], lambda row: STEPS[row["lane"]]),
        ("step", field("median_ms", ".2f", " ms")),
        ("against Farandole's DDP", field("ratio", ".3f", "x")),
        ("middle half", quartiles(after="x")),
        ("processor", field("cpu_ms", ".2f", " ms")),
        ("against DDP's", field("cpu_ratio", ".3f", "x")),
    ]
    return markdown(lines_of(rows, table))


SECTION = Section(
    FILE,
    "Horovod's interface over Farandole: averages, and whole steps with SGD, 2 ranks of one "
    "thread, commit {commit}, {date}. All rows are in "
    "[horovod.jsonl](../benchmarks/results/horovod.jsonl).",
    summary,
)
