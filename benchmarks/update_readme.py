# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers of benchmarks/results into README.md: run it after a benchmark.

With --check it writes nothing and fails where README.md differs from the results.
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

BEGIN = "<!-- measured: begin; written by benchmarks/update_readme.py -->"
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
        "(benchmarks/results/all_reduce.svg)",
        f"Medians of one run on {row['cores']} cores ({row['cpu']}) with torch {row['torch']} and "
        f"OpenMPI {row['openmpi']}, lanes in interleaved rounds, every result verified; commit "
        f"{row['commit']}, {row['timestamp'][:10]}. Absolute times vary with the machine; the "
        "method is in [docs/benchmarks.md](docs/benchmarks.md), all rows are in "
        "[collectives.jsonl](benchmarks/results/collectives.jsonl).",
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
        "[ddp.jsonl](benchmarks/results/ddp.jsonl)."
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
        "[zero.jsonl](benchmarks/results/zero.jsonl)."
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
        "rows are in [amp.jsonl](benchmarks/results/amp.jsonl)."
    )
    return f"{text}\n\n{amp_summary(rows)}"


def rows_of(name: str) -> list[Row]:
    """Of a file in benchmarks/results; none if nobody has measured that yet."""
    path = REPOSITORY / "benchmarks" / "results" / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def filled(readme: str, text: str) -> str:
    """README.md with `text` between the markers."""
    before, found, rest = readme.partition(BEGIN)
    _, also_found, after = rest.partition(END)
    if not found or not also_found:
        sys.exit(f"README.md lacks the lines\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    """Reads the results, rewrites README.md or checks it."""
    path = REPOSITORY / "README.md"
    readme = path.read_text()
    rows = rows_of("collectives.jsonl")
    parts = [ddp_section(rows_of("ddp.jsonl")), zero_section(rows_of("zero.jsonl"))]
    parts.append(amp_section(rows_of("amp.jsonl")))
    parts += [section(Results(rows)), operations_section(rows)]
    wanted = filled(readme, "\n\n".join(part for part in parts if part))
    if "--check" not in sys.argv:
        path.write_text(wanted)
    elif readme != wanted:
        sys.exit("README.md differs from benchmarks/results: run benchmarks/update_readme.py")


if __name__ == "__main__":
    main()
