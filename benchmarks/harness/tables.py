# SPDX-License-Identifier: Apache-2.0
"""Tables of rows, and numbers with their units."""

from collections.abc import Callable, Collection, Iterable

from benchmarks.harness.results import Row


def time_text(microseconds: float | None) -> str:
    """Three digits with a unit."""
    if microseconds is None:
        return "-"
    value, unit = (microseconds, "us") if microseconds < 10_000 else (microseconds / 1e3, "ms")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def ratio_text(ratio: float | None) -> str:
    """How many times faster: 0.85x, 9.3x, 24x."""
    if ratio is None:
        return "-"
    return f"{ratio:.{2 if ratio < 1 else 1 if ratio < 10 else 0}f}x"


Lines = list[list[str]]
Cell = Callable[[Row], str]
Column = tuple[str, Cell]  # its head and what it says of a row


def field(key: str, form: str = "", after: str = "") -> Cell:
    """The row's `key`, as format() has it; empty in rows without one."""
    return lambda row: f"{row[key]:{form}}{after}" if key in row else ""


def mib(key: str, digits: int, after: str = "") -> Cell:
    """The same for bytes, in MiB."""
    return lambda row: f"{row[key] / 2**20:.{digits}f}{after}" if key in row else ""


def quartiles(after: str = "") -> Cell:
    """Where the middle half of ratios is."""

    def text(row: Row) -> str:
        low, high = row.get("ratio_quartiles", (None, None))
        return "" if low is None else f"{low:.3f}{after} to {high:.3f}{after}"

    return text


MEDIAN_AND_P95: list[Column] = [
    ("median ms", field("median_ms", ".2f")),
    ("p95", field("p95_ms", ".2f")),
]


def lines_of(rows: Iterable[Row], table: list[Column]) -> Lines:
    """The heads, then a line for each row."""
    return [[head for head, _ in table], *([cell(row) for _, cell in table] for row in rows)]


def titled(title: str, rows: Iterable[Row], table: list[Column]) -> str:
    """The title, and below it columns()."""
    return f"{title}\n{columns(lines_of(rows, table))}"


def columns(lines: Lines) -> str:
    """Right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def markdown(lines: Lines, left: Collection[int] = (0,)) -> str:
    """A Markdown table with heads; all columns but these are right-aligned."""
    heads, *rest = lines
    aligned = ["---" if place in left else "---:" for place in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, aligned, *rest))
