# SPDX-License-Identifier: Apache-2.0
"""The results of collectives.jsonl as docs/benchmarks.md has them. Needs no torch."""

from farandole.bench.sizes import KIB, MIB, size_text

from benchmarks.collectives.lanes import GLOO, LANES, OPENMPI, SYMMETRIC, TORCH
from benchmarks.collectives.measured import Results, kind_of
from benchmarks.collectives.operations import OPERATIONS
from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import markdown, ratio_text, time_text

FILE = "collectives.jsonl"
SIZES = [KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
OPERATION_SIZES = [256 * KIB, 16 * MIB]
HEADINGS = [
    LANES[SYMMETRIC].label,
    LANES[TORCH].label,
    "OpenMPI",
    "gloo",
    *(f"{ours} against {peer}" for ours in ("C++", "torch") for peer in ("gloo", "OpenMPI")),
]


def all_reduce(rows: list[Row]) -> str:
    """Markdown: a table for each number of ranks, then the time of imports."""
    results = Results(rows)
    parts = [all_reduce_table(results, ranks) for ranks in results.ranks]
    if results.import_time:
        parts.append(
            f"`import farandole` takes {results.import_time['import_farandole_ms']} ms beyond "
            f"`import torch` ({results.import_time['import_torch_ms'] / 1e3:.1f} s)."
        )
    return "\n\n".join(parts)


def all_reduce_table(results: Results, ranks: int) -> str:
    """Markdown: one line a size."""
    lines = [[f"{ranks} ranks", *HEADINGS]]
    for size in SIZES:
        times = [results.median(lane, ranks, size) for lane in (SYMMETRIC, TORCH, OPENMPI, GLOO)]
        ratios = [
            results.ratio(ours, peer, ranks, size)
            for ours in (SYMMETRIC, TORCH)
            for peer in (GLOO, OPENMPI)
        ]
        lines.append([size_text(size), *map(time_text, times), *map(ratio_text, ratios)])
    return markdown(lines, left=())


def others(rows: list[Row]) -> str:
    """Markdown: one line an operation, through torch."""
    heads = ["2 ranks, through torch"]
    for size in OPERATION_SIZES:
        heads += [size_text(size), "against gloo", "against OpenMPI"]
    measured = (Results(rows, name) for name in OPERATIONS)
    return markdown([heads, *(others_line(results) for results in measured if results.rows)])


def others_line(results: Results) -> list[str]:
    """Medians, and how many times faster than its peers."""
    line = [results.title]
    for size in OPERATION_SIZES:
        size = 0 if results.operation == "barrier" else size
        line.append(time_text(results.median(TORCH, 2, size)))
        for peer in (GLOO, OPENMPI):
            ratio = ratio_text(results.ratio(TORCH, peer, 2, size))
            line.append("n/a" if peer in results.cannot else ratio)
    return line


def is_all_reduce(row: Row) -> bool:
    """Or of the imports that are measured with it."""
    return kind_of(row) in {"all_reduce", "import"}


ALL_REDUCE = Section(
    FILE,
    "![Median time of all_reduce against bytes, for 2 and 4 ranks]"
    "(../benchmarks/results/all_reduce.svg)\n\n"
    "Medians of one run on {cores} cores ({cpu}) with torch {torch} and OpenMPI {openmpi}, lanes "
    "in interleaved rounds, every result verified; commit {commit}, {date}. Absolute times vary "
    "with the machine; the method is explained above, all rows are in "
    "[collectives.jsonl](../benchmarks/results/collectives.jsonl).",
    all_reduce,
    is_all_reduce,
)
OTHERS = Section(
    FILE,
    "The other operations, commit {commit}, {date}:",
    others,
    lambda row: not is_all_reduce(row),
)
