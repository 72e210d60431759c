# SPDX-License-Identifier: Apache-2.0
"""Writes the measured numbers of benchmarks/results into README.md: run it after `make bench`.

With --check it writes nothing and fails where README.md differs from the results.
"""

import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "benchmarks" / "collectives"))

from report import (  # noqa: E402
    GLOO,
    KIB,
    MIB,
    OPENMPI,
    SYMMETRIC,
    TORCH,
    Results,
    ratio_text,
    size_text,
    time_text,
)

BEGIN = "<!-- measured: begin; written by benchmarks/update_readme.py -->"
END = "<!-- measured: end -->"
SIZES = [KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
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
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(readme: str, text: str) -> str:
    """README.md with `text` between the markers."""
    before, found, rest = readme.partition(BEGIN)
    _, also_found, after = rest.partition(END)
    if not found or not also_found:
        sys.exit(f"README.md lacks the lines\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    """Reads the results, rewrites README.md or checks it."""
    lines = (REPOSITORY / "benchmarks/results/collectives.jsonl").read_text().splitlines()
    path = REPOSITORY / "README.md"
    readme = path.read_text()
    wanted = filled(readme, section(Results(json.loads(line) for line in lines)))
    if "--check" not in sys.argv:
        path.write_text(wanted)
    elif readme != wanted:
        sys.exit("README.md differs from benchmarks/results: run benchmarks/update_readme.py")


if __name__ == "__main__":
    main()
