# SPDX-License-Identifier: Apache-2.0
"""The memory of a group: its segment, pages, page tables, mappings and open files.

    python benchmarks/memory/run.py            # half a minute
    python benchmarks/memory/run.py --quick    # does it work?

Prints a table, and writes memory.jsonl (one line a row) into benchmarks/results.
"""

import argparse
import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCHMARKS / "collectives"))

import machine  # noqa: E402
from lanes import Ranks, program_commands  # noqa: E402
from operations import KIB, MIB  # noqa: E402
from report import columns  # noqa: E402

PROGRAM = "farandole_bench_memory"
RANKS = [2, 4, 8, 16, 32, 64]

Usages = list[dict[str, Any]]  # one a rank, see usage.h


def main() -> None:
    """Measures, writes, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", help="2 4 8 16 32 64")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks")
    parser.add_argument("--output", type=Path, help="folder (with --quick none)")
    arguments = parser.parse_args()
    rows = [measure(ranks) for ranks in arguments.ranks or RANKS[: 2 if arguments.quick else None]]
    where = machine.describe()
    rows = [{**row, **where} for row in rows]
    output = arguments.output or (None if arguments.quick else BENCHMARKS / "results")
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "memory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))


def measure(ranks: int) -> dict[str, Any]:
    """Looks before the group is made, after that, and after every operation has run."""
    with closing(Ranks(PROGRAM, ranks, partial(program_commands, PROGRAM))) as running:
        before = running.ask("look")
        running.ask("make")
        made = running.ask("look")
        running.ask("mix")
        mixed = running.ask("look")  # all ranks are there and quiet, so that pages are shared out
    if not all(usage["virtual_bytes"] for usage in mixed):
        raise RuntimeError("no segment of Farandole was found in /proc/self/smaps")
    return {
        "ranks": ranks,
        "segment_bytes": most(mixed, "virtual_bytes"),
        "resident_made_bytes": resident(made),
        "resident_bytes": resident(mixed),
        "page_table_bytes": total(mixed, "page_table_bytes") - total(before, "page_table_bytes"),
        "page_table_bytes_per_rank": growth(before, mixed, "page_table_bytes"),
        "mappings_per_rank": most(mixed, "mappings"),
        "descriptors_per_rank": growth(before, mixed, "descriptors"),
        "threads_per_rank": growth(before, mixed, "threads"),
    }


def resident(usages: Usages) -> int:
    """Pages of the segment in memory, each once; the kernel rounds each rank's part down."""
    return max(total(usages, "shared_out_bytes"), most(usages, "resident_bytes"))


def total(usages: Usages, key: str) -> int:
    """Over all ranks."""
    return sum(usage[key] for usage in usages)


def most(usages: Usages, key: str) -> int:
    """Of the rank that has most."""
    return max(usage[key] for usage in usages)


def growth(before: Usages, after: Usages, key: str) -> int:
    """Of the rank that grew most. Answers come in the same order each time."""
    return max(late[key] - early[key] for early, late in zip(before, after, strict=True))


def table(rows: list[dict[str, Any]]) -> str:
    """One line a number of ranks."""
    heads = ["ranks", "segment", "resident, made", "used", "page tables", "of a rank"]
    lines = [[*heads, "mappings", "descriptors", "threads"]]
    for row in rows:
        sizes = ["segment", "resident_made", "resident", "page_table"]
        lines.append(
            [
                str(row["ranks"]),
                *(bytes_text(row[f"{name}_bytes"]) for name in sizes),
                bytes_text(row["page_table_bytes_per_rank"]),
                *(str(row[f"{name}_per_rank"]) for name in ("mappings", "descriptors", "threads")),
            ]
        )
    return f"memory of one group; the last three columns count what a rank gains\n{columns(lines)}"


def bytes_text(size: int) -> str:
    """12 KiB, 3.4 MiB."""
    return f"{size / MIB:.1f} MiB" if abs(size) >= MIB else f"{size / KIB:.0f} KiB"


if __name__ == "__main__":
    main()
