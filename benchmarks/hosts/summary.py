# SPDX-License-Identifier: Apache-2.0
"""The results of hosts.jsonl as docs/benchmarks.md has them. Needs no torch."""

from farandole.bench.sizes import size_text

from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import Column, field, lines_of, markdown
from benchmarks.hosts.lanes import LANES, OF_PART, layout_text

FILE = "hosts.jsonl"
PLOT = "all_reduce_hosts"
PLOTTED_LAYOUT, PLOTTED_RATE = "0,0,1,1", "1gbit"
FEWEST_PLOTTED = 3  # sizes


def plotted(rows: list[Row]) -> list[Row]:
    """Those that the plot shows; none if they have too few sizes for one."""
    place = ("all_reduce", PLOTTED_LAYOUT, PLOTTED_RATE)
    found = [row for row in rows if (row["part"], row["hosts"], row["rate"]) == place]
    found = [row for row in found if "of_raw" in row]
    return found if len({row["bytes"] for row in found}) >= FEWEST_PLOTTED else []


def summary(rows: list[Row]) -> str:
    """Markdown: a table of each layout, rate and part."""
    picture = f"![Time of all_reduce between hosts](../benchmarks/results/{PLOT}.svg)"
    parts = [picture] if plotted(rows) else []
    for part, table in (("all_reduce", reduced), ("steps", steps), ("formation", formation)):
        own = [row for row in rows if row["part"] == part and "cannot" not in row]
        rates = dict.fromkeys(row["rate"] for row in own)
        parts += [table([row for row in own if row["rate"] == rate]) for rate in rates]
    missing = dict.fromkeys(
        f"Without {LANES[row['lane']]}: {row['cannot']}." for row in rows if "cannot" in row
    )
    return "\n\n".join([*parts, *missing])


def rate_text(rate: str) -> str:
    """As prose has it."""
    return rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")


def reduced(rows: list[Row]) -> str:
    """all_reduce at one rate: a line a layout and size, a column a lane."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["hosts"], row["bytes"]), {})[row["lane"]] = row
    measured = {row["lane"] for row in rows}
    lanes = [lane for lane in OF_PART["all_reduce"] if lane in measured]
    head = f"all_reduce, {rate_text(rows[0]['rate'])}"
    lines = [[head, "size", *(LANES[lane] for lane in lanes)]]
    for (layout, size), by_lane in found.items():
        cells = [time_and_cpu(by_lane.get(lane, {})) for lane in lanes]
        lines.append([layout_text(layout), size_text(size), *cells])
    return markdown(lines, left=(0, 1))


def time_and_cpu(row: Row) -> str:
    """The median, how much of plain TCP's speed that is, and CPU seconds a GB."""
    if not row:
        return ""
    of_raw = f", {row['of_raw']:.2f}" if "of_raw" in row and row["lane"] != "raw" else ""
    digits = 2 if row["median_ms"] < 10 else 1
    return f"{row['median_ms']:.{digits}f} ms{of_raw} ({row['cpu_s_a_gb']:.2f})"


def steps(rows: list[Row]) -> str:
    """Training steps at one rate: a table a layout."""
    texts = []
    for layout in dict.fromkeys(row["hosts"] for row in rows):
        where = f"{layout_text(layout)}, {rate_text(rows[0]['rate'])}"
        columns: list[Column] = [
            (f"Training step, {where}", lambda row: LANES[row["lane"]]),
            ("median", field("median_ms", ".0f", " ms")),
            ("p95", field("p95_ms", ".0f", " ms")),
            ("bound", field("bound_ms", ".0f", " ms")),
            ("of the bound", field("of_bound", ".3f", "x")),
        ]
        texts.append(markdown(lines_of([row for row in rows if row["hosts"] == layout], columns)))
    return "\n\n".join(texts)


def formation(rows: list[Row]) -> str:
    """How long groups take to form."""
    columns: list[Column] = [
        ("init_process_group()", lambda row: layout_text(row["hosts"])),
        ("backend", lambda row: row["lane"]),
        ("median", field("median_ms", ".1f", " ms")),
        ("p95", field("p95_ms", ".1f", " ms")),
        ("with a first barrier", field("ready_ms", ".1f", " ms")),
        ("CPU of a rank", field("cpu_ms", ".1f", " ms")),
    ]
    return markdown(lines_of(rows, columns), left=(0, 1))


SECTION = Section(
    FILE,
    "Hosts that network namespaces emulate, all on the {cores} cores of one machine, one thread a "
    "rank, commit {commit}, {date}. Of all_reduce each cell has the median, its part of the speed "
    "of plain TCP with the same bytes, and in parentheses CPU seconds for a GB that a host sends "
    "or receives. All rows are in [hosts.jsonl](../benchmarks/results/hosts.jsonl).",
    summary,
)
