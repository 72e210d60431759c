# SPDX-License-Identifier: Apache-2.0
"""The memory of a group: its segment, pages, page tables, mappings and open files.

    python -m benchmarks.memory.run            # half a minute
    python -m benchmarks.memory.run --quick    # does it work?

Prints a table, and writes memory.jsonl (one line a row) into build/benchmarks.
"""

from farandole.bench.sizes import KIB, MIB

from benchmarks.harness.ranks import Answer, Ranks, commands_of_program
from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.tables import Cell, Column, field, titled

PROGRAM = "farandole_bench_memory"
RANKS = [2, 4, 8, 16, 32, 64]

Usages = list[Answer]  # one a rank, see usage.h


def measure(ranks: int) -> Row:
    """Looks before the group is made, after that, and after every operation has run."""
    with Ranks(PROGRAM, ranks, commands_of_program(PROGRAM)) as running:
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
    return sum(int(usage[key]) for usage in usages)


def most(usages: Usages, key: str) -> int:
    """Of the rank that has most."""
    return max(int(usage[key]) for usage in usages)


def growth(before: Usages, after: Usages, key: str) -> int:
    """Of the rank that grew most. Answers come in the same order each time."""
    return max(int(late[key] - early[key]) for early, late in zip(before, after, strict=True))


def bytes_field(key: str) -> Cell:
    """12 KiB, 3.4 MiB."""

    def text(row: Row) -> str:
        size = row[key]
        return f"{size / MIB:.1f} MiB" if abs(size) >= MIB else f"{size / KIB:.0f} KiB"

    return text


COLUMNS: list[Column] = [
    ("ranks", field("ranks")),
    ("segment", bytes_field("segment_bytes")),
    ("resident, made", bytes_field("resident_made_bytes")),
    ("used", bytes_field("resident_bytes")),
    ("page tables", bytes_field("page_table_bytes")),
    ("of a rank", bytes_field("page_table_bytes_per_rank")),
    ("mappings", field("mappings_per_rank")),
    ("descriptors", field("descriptors_per_rank")),
    ("threads", field("threads_per_rank")),
]


def table(rows: list[Row]) -> str:
    """One line a number of ranks."""
    head = "memory of one group; the last three columns count what a rank gains"
    return titled(head, rows, COLUMNS)


if __name__ == "__main__":
    parser = new_parser(__doc__, "2 and 4 ranks")
    parser.add_argument("--ranks", type=int, nargs="+", help="2 4 8 16 32 64")
    arguments = parse(parser)
    wanted = arguments.ranks or RANKS[: 2 if arguments.quick else None]
    Report("memory.jsonl", table).make(arguments, [[measure(ranks) for ranks in wanted]])
