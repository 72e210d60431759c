# SPDX-License-Identifier: Apache-2.0
"""The results of zero.jsonl as docs/benchmarks.md has them. Needs no torch."""

from operations import MIB
from report import Row, markdown
from zero_lanes import LANES

MODELS = {"transformer": "33.6 M parameters", "gpt2": "125 M parameters"}
HEADS = ["step", "against no communication", "middle half", "forward, backward", "step()"]
HEADS += ["memory", "optimizer state"]


def summary(rows: list[Row]) -> str:
    """Markdown: a table of each model and number of ranks, then the kernels."""
    places = dict.fromkeys((row["task"], row["ranks"]) for row in rows if row["part"] == "times")
    parts = [table(rows, task, ranks) for task, ranks in places]
    kernels = [row for row in rows if row["part"] == "kernel"]
    return "\n\n".join(parts + ([kernel_text(kernels)] if kernels else []))


def table(rows: list[Row], task: str, ranks: int) -> str:
    """Markdown: one line a lane."""
    rows = [row for row in rows if (row["task"], row["ranks"]) == (task, ranks)]
    steady = {row["lane"]: row["live_steady_bytes"] for row in rows if row["part"] == "memory"}
    lines = [[f"{MODELS[task]}, {ranks} ranks", *HEADS], ["---", *["---:"] * len(HEADS)]]
    for row in first_of_lanes([row for row in rows if row["part"] == "times"]):
        lane = row["lane"]
        low, high = row.get("ratio_quartiles", (None, None))
        lines.append(
            [
                LANES[lane].label,
                f"{row['median_ms']:.0f} ms",
                f"{row['ratio']:.3f}x" if "ratio" in row else "",
                f"{low:.3f}x to {high:.3f}x" if low is not None else "",
                f"{row['backward_ms']:.0f} ms",
                f"{row['update_ms']:.1f} ms",
                f"{steady[lane] / MIB:.0f} MiB" if lane in steady else "",
                f"{row['state_bytes'] / MIB:.0f} MiB",
            ]
        )
    return markdown(lines)


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
