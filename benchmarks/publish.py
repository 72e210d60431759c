# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers of benchmarks/results into README.md and docs/benchmarks.md.

Run it after a benchmark. With --check it writes nothing and fails if a page differs from the
results. README.md gets five rows, docs/benchmarks.md gets all tables.
"""

import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("collectives", "ddp", "zero", "amp")
sys.path[:0] = [str(REPOSITORY / "benchmarks" / folder) for folder in FOLDERS]

from amp_summary import summary as amp_summary  # noqa: E402
from operations import OPERATIONS  # noqa: E402
from report import (  # noqa: E402
    GLOO,
    KIB,
    MIB,
    OPENMPI,
    SYMMETRIC,
    TITLES,
    TORCH,
    Results,
    Row,
    markdown,
    ratio_text,
    size_text,
    time_text,
)
from summary import summary  # noqa: E402
from zero_summary import summary as zero_summary  # noqa: E402

BEGIN = "<!-- measured: begin; written by benchmarks/publish.py -->"
END = "<!-- measured: end -->"
SIZES = [KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
OPERATION_SIZES = [256 * KIB, 16 * MIB]
HEADINGS = [
    "Farandole C++, symmetric memory",
    "Farandole through torch",
    "OpenMPI",
    "gloo",
    "C++ against gloo",
    "C++ against OpenMPI",
    "torch against gloo",
    "torch against OpenMPI",
]


def section(results: Results) -> str:
    """The text between the markers."""
    row = results.rows[0]
    parts = [
        "![Median time of all_reduce against bytes, for 2 and 4 ranks]"
        "(../benchmarks/results/all_reduce.svg)",
        f"Medians of one run on {row['cores']} cores ({row['cpu']}) with torch {row['torch']} and "
        f"OpenMPI {row['openmpi']}, lanes in interleaved rounds, every result verified; commit "
        f"{row['commit']}, {row['timestamp'][:10]}. Absolute times vary with the machine; the "
        "method is explained above, all rows are in "
        "[collectives.jsonl](../benchmarks/results/collectives.jsonl).",
    ]
    parts += [table(results, ranks) for ranks in results.ranks]
    if results.import_time:
        parts.append(
            f"`import farandole` takes {results.import_time['import_farandole_ms']} ms beyond "
            f"`import torch` ({results.import_time['import_torch_ms'] / 1e3:.1f} s)."
        )
    return "\n\n".join(parts)


def table(results: Results, ranks: int) -> str:
    """Markdown: one line a size."""
    lines = [[f"{ranks} ranks", *HEADINGS], ["---:"] * (1 + len(HEADINGS))]
    for size in SIZES:
        times = [results.median(lane, ranks, size) for lane in (SYMMETRIC, TORCH, OPENMPI, GLOO)]
        ratios = [
            results.ratio(ours, peer, ranks, size)
            for ours in (SYMMETRIC, TORCH)
            for peer in (GLOO, OPENMPI)
        ]
        lines.append([size_text(size), *map(time_text, times), *map(ratio_text, ratios)])
    return markdown(lines)


def operations_section(rows: list[Row]) -> str:
    """Markdown: one line an operation, through torch; empty if only all_reduce was measured."""
    heads = ["2 ranks, through torch"]
    for size in OPERATION_SIZES:
        heads += [size_text(size), "against gloo", "against OpenMPI"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for name in OPERATIONS:
        results = Results(rows, name)
        if name == "all_reduce" or not results.rows:
            continue
        line = [TITLES.get(name, name)]
        for size in OPERATION_SIZES:
            size = 0 if name == "barrier" else size
            line.append(time_text(results.median(TORCH, 2, size)))
            for peer in (GLOO, OPENMPI):
                ratio = ratio_text(results.ratio(TORCH, peer, 2, size))
                line.append("n/a" if peer in results.cannot else ratio)
        lines.append(line)
    if len(lines) == 2:
        return ""
    row = next(row for row in rows if row.get("operation", "all_reduce") != "all_reduce")
    table_text = markdown(lines)
    return f"The other operations, commit {row['commit']}, {row['timestamp'][:10]}:\n\n{table_text}"


def ddp_section(rows: list[Row]) -> str:
    """Markdown: training steps; empty if none were measured."""
    if not rows:
        return ""
    row = rows[0]
    text = (
        "Training steps with DistributedDataParallel, one thread a rank, commit "
        f"{row['commit']}, {row['timestamp'][:10]}. Scaling is the throughput of both ranks over "
        "twice that of one alone; without DDP it is what the machine allows. All rows are in "
        "[ddp.jsonl](../benchmarks/results/ddp.jsonl)."
    )
    return f"{text}\n\n{summary(rows)}"


def zero_section(rows: list[Row]) -> str:
    """Markdown: training with sharded optimizers; empty if it was not measured."""
    if not rows:
        return ""
    row = rows[0]
    text = (
        "Training steps with AdamW whose state is divided between the ranks (ZeRO), one thread a "
        f"rank, on {row['cores']} cores, commit {row['commit']}, {row['timestamp'][:10]}. "
        "Memory is a rank's after a step: parameters, gradients and state. All rows are in "
        "[zero.jsonl](../benchmarks/results/zero.jsonl)."
    )
    return f"{text}\n\n{zero_summary(rows)}"


def amp_section(rows: list[Row]) -> str:
    """Markdown: what a GradScaler costs; empty if it was not measured."""
    if not rows:
        return ""
    row = rows[0]
    text = (
        "Training steps with a GradScaler and without (models in float32, AdamW, one thread a "
        f"rank, on {row['cores']} cores), commit {row['commit']}, {row['timestamp'][:10]}. All "
        "rows are in [amp.jsonl](../benchmarks/results/amp.jsonl)."
    )
    return f"{text}\n\n{amp_summary(rows)}"


def rows_of(name: str) -> list[Row]:
    """Of a file in benchmarks/results; none if nobody has measured that yet."""
    path = REPOSITORY / "benchmarks" / "results" / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def comparison(
    ddp: list[Row], zero: list[Row], collectives: list[Row]
) -> list[tuple[str, str, float, float]]:
    """What is compared, with which peer, and both times in ms: the five rows of README.md."""
    found: list[tuple[str, str, float, float]] = []
    for task, what in (
        ("resnet50", "forward and backward, ResNet-50, 2 ranks"),
        ("transformer", "forward and backward, transformer with 33.6 M parameters, 2 ranks"),
    ):
        times = {row["lane"]: row["median_ms"] for row in ddp if is_time(row, task, None)}
        if {"farandole", "torch_gloo_view"} <= times.keys():
            found.append((what, "DDP, gloo", times["farandole"], times["torch_gloo_view"]))
    for task, ranks, size in (("transformer", 2, "33.6 M"), ("gpt2", 4, "125 M")):
        times = {row["lane"]: row["median_ms"] for row in zero if is_time(row, task, ranks)}
        if {"ours_shard", "torch_zero"} <= times.keys():
            what = f"step with sharded AdamW, transformer with {size} parameters, {ranks} ranks"
            found.append((what, "DDP, ZeRO, gloo", times["ours_shard"], times["torch_zero"]))
    results = Results(collectives)
    ours, gloo = (results.median(lane, 4, 16 * MIB) for lane in (TORCH, GLOO))
    if ours and gloo:
        what = "torch.distributed.all_reduce of 16 MiB, 4 ranks"
        found.append((what, "gloo", ours / 1e3, gloo / 1e3))
    return found


def is_time(row: Row, task: str, ranks: int | None) -> bool:
    """Whether the row has times of this model, and of this number of ranks if one is given."""
    return row["part"] == "times" and row["task"] == task and ranks in (None, row["ranks"])


def short_section(ddp: list[Row], zero: list[Row], collectives: list[Row]) -> str:
    """The text for README.md."""
    lines = [["median time", "Farandole", "torch", "with", "Farandole / torch"]]
    lines.append(["---", "---:", "---:", "---", "---:"])
    for what, peer, ours, theirs in comparison(ddp, zero, collectives):
        times = [time_text(each * 1e3) for each in (ours, theirs)]
        lines.append([what, *times, peer, f"{ours / theirs:.2f}x"])
    return (
        f"{markdown(lines)}\n\nOn a machine with 2 cores, one thread for each rank. "
        "[docs/benchmarks.md](docs/benchmarks.md)\nhas the method and all tables, "
        "[benchmarks/results](benchmarks/results) the raw results."
    )


def filled(page: str, text: str) -> str:
    """The page with `text` between the markers."""
    before, found, rest = page.partition(BEGIN)
    _, also_found, after = rest.partition(END)
    if not found or not also_found:
        sys.exit(f"A page lacks the lines\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    """Reads the results, rewrites the pages or checks them."""
    ddp, zero, amp = (rows_of(f"{name}.jsonl") for name in ("ddp", "zero", "amp"))
    collectives = rows_of("collectives.jsonl")
    parts = [ddp_section(ddp), zero_section(zero), amp_section(amp)]
    parts += [section(Results(collectives)), operations_section(collectives)]
    pages = {
        REPOSITORY / "README.md": short_section(ddp, zero, collectives),
        REPOSITORY / "docs" / "benchmarks.md": "\n\n".join(part for part in parts if part),
    }
    for path, text in pages.items():
        wanted = filled(path.read_text(), text)
        if "--check" not in sys.argv:
            path.write_text(wanted)
        elif path.read_text() != wanted:
            sys.exit(f"{path.name} differs from benchmarks/results: run benchmarks/publish.py")


if __name__ == "__main__":
    main()
