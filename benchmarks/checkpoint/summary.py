# SPDX-License-Identifier: Apache-2.0
"""The results of checkpoint.jsonl as docs/benchmarks.md has them. Needs no torch."""

from benchmarks.checkpoint.lanes import LANES, PARTS
from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import Column, field, lines_of, markdown, mib

FILE = "checkpoint.jsonl"


def summary(rows: list[Row]) -> str:
    """Markdown: a table of each model."""
    tasks = dict.fromkeys(row["task"] for row in rows)
    return "\n\n".join(table([row for row in rows if row["task"] == task]) for task in tasks)


def table(rows: list[Row]) -> str:
    """Markdown: one line a lane."""
    first = rows[0]
    by_part = {part: {r["lane"]: r for r in rows if r["part"] == part} for part in PARTS}

    def of(part: str, cell: Column) -> Column:
        name, text = cell
        return name, lambda row: text(by_part[part].get(row["lane"], {}))

    columns: list[Column] = [
        (
            f"{first['parameters'] / 1e6:.1f} M parameters, {first['ranks']} ranks",
            lambda row: LANES[row["lane"]],
        )
    ]
    for part in ("save", "load", "stall"):
        columns.append(of(part, (part, field("median_ms", ".0f", " ms"))))
        columns.append(of(part, ("/ raw", field("of_raw", ".2f", "x"))))
    columns.append(of("memory", ("memory of a save", mib("save_bytes", 0, " MiB"))))
    columns.append(of("memory", ("of a load", mib("load_bytes", 0, " MiB"))))
    lanes: list[Row] = [{"lane": lane} for lane in LANES]
    text = markdown(lines_of(lanes, columns))
    states = [row["state_bytes"] for row in rows if row["part"] == "memory"]
    return text + (f"\n\nA rank's state: {mib('', 0, ' MiB')({'': states[0]})}." if states else "")


SECTION = Section(
    FILE,
    "Saving and loading parameters and AdamW's sharded state in float32, one thread a rank, on "
    "{cores} cores and one disk, commit {commit}, {date}. A save ends when all is on the disk; a "
    "load reads the page cache; stall is how long an asynchronous save stops the training. Memory "
    "is the most beyond what the training has, of one rank. All rows are in "
    "[checkpoint.jsonl](../benchmarks/results/checkpoint.jsonl).",
    summary,
)
