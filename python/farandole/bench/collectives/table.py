# SPDX-License-Identifier: Apache-2.0
"""The table, in nccl-tests' columns, with one line for each lane."""

from __future__ import annotations

from farandole.bench.rows import Row

HEAD = (
    f"{'bytes':>12} {'count':>12} {'type':>9} {'redop':>6} {'root':>5} {'lane':>10} "
    f"{'time':>10} {'p95':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>7}"
)
UNITS = (
    f"{'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'':>5} {'':>10} "
    f"{'(us)':>10} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}"
)


def line_of(row: Row) -> str:
    """One row."""
    case = (
        f"{row['bytes']:>12} {row['count']:>12} {row['dtype']:>9} {row['op']:>6} {row['root']:>5} "
        f"{row['lane']:>10} "
    )
    if "cannot" in row:
        return f"{case}n/a: {row['cannot']}"
    wrong = "N/A" if row["wrong"] is None else str(row["wrong"])
    return (
        f"{case}{_time(row['time_us']):>10} {_time(row['p95_us']):>10} "
        f"{row['algbw_gb_s']:>8.2f} {row['busbw_gb_s']:>8.2f} {wrong:>7}"
    )


def _time(microseconds: float) -> str:
    """At least four digits, as nccl-tests has them."""
    digits = 2 if microseconds < 1000 else 1 if microseconds < 10_000 else 0
    return f"{microseconds:.{digits}f}"


def verdict_of(rows: list[Row]) -> str:
    """The last line: whether results are right, and the mean bus bandwidth of each lane."""
    measured = [row for row in rows if "cannot" not in row]
    wrong = sum(row["wrong"] or 0 for row in measured)
    if any(row["wrong"] is None for row in measured):
        checked = "not verified (-c 0)"
    else:
        checked = f"wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}"
    means = []
    for lane in dict.fromkeys(row["lane"] for row in measured):
        own = [row["busbw_gb_s"] for row in measured if row["lane"] == lane]
        means.append(f"{lane} {sum(own) / len(own):.2f}")
    return f"# {checked}; mean busbw in GB/s: {', '.join(means) or 'nothing was measured'}"
