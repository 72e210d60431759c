# SPDX-License-Identifier: Apache-2.0
"""The results of zero.jsonl as docs/benchmarks.md has them. Needs no torch."""

from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import field, lines_of, markdown, mib, quartiles
from benchmarks.zero.lanes import LANES

FILE = "zero.jsonl"
MODELS = {"transformer": "33.6 M parameters", "gpt2": "125 M parameters"}


def summary(rows: list[Row]) -> str:
    """Markdown: a table of each model and number of ranks, then the kernels."""
    places = dict.fromkeys((row["task"], row["ranks"]) for row in rows if row["part"] == "times")
    parts = [table(rows, task, ranks) for task, ranks in places]
    kernels = [row for row in rows if row["part"] == "kernel"]
    return "\n\n".join(parts + ([kernel_text(kernels)] if kernels else []))


def table(rows: list[Row], task: str, ranks: int) -> str:
    """Markdown: one line a lane."""
    rows = [row for row in rows if (row["task"], row["ranks"]) == (task, ranks)]
    memory = {row["lane"]: row for row in rows if row["part"] == "memory"}
    steady = mib("live_steady_bytes", 0, " MiB")
    table = [
        (f"{MODELS[task]}, {ranks} ranks", lambda row: LANES[row["lane"]].label),
        ("step", field("median_ms", ".0f", " ms")),
        ("against no communication", field("ratio", ".3f", "x")),
        ("middle half", quartiles(after="x")),
        ("forward, backward", field("backward_ms", ".0f", " ms")),
        ("step()", field("update_ms", ".1f", " ms")),
        ("memory", lambda row: steady(memory.get(row["lane"], {}))),
        ("optimizer state", mib("state_bytes", 0, " MiB")),
    ]
    times = first_of_lanes([row for row in rows if row["part"] == "times"])
    return markdown(lines_of(times, table))


def first_of_lanes(rows: list[Row]) -> list[Row]:
    """In the order of LANES; "local" runs with every set of lanes, of which the first counts."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row["lane"], row)
    return [found[lane] for lane in LANES if lane in found]


def kernel_text(rows: list[Row]) -> str:
    """One sentence."""
    lanes = {"farandole": "Farandole's", "torch": "torch's fused", "memcpy": "a copy"}
    parts = []
    for processes in dict.fromkeys(row["processes"] for row in rows):
        cells = ", ".join(
            f"{lanes[row['lane']]} {row['gb_s']:.1f}"
            for row in rows
            if row["processes"] == processes
        )
        parts.append(f"in {processes} process{'es' * (processes > 1)} at once {cells}")
    return f"AdamW's loop over {rows[0]['elements']:,} elements, in GB/s: {'; '.join(parts)}."


SECTION = Section(
    FILE,
    "Training steps with AdamW whose state is divided between the ranks (ZeRO), one thread a "
    "rank, on {cores} cores, commit {commit}, {date}. "
    "Memory is a rank's after a step: parameters, gradients and state. All rows are in "
    "[zero.jsonl](../benchmarks/results/zero.jsonl).",
    summary,
)
