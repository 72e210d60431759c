# SPDX-License-Identifier: Apache-2.0
"""The table: a line for each lane of a cell."""

from __future__ import annotations

from farandole.bench.rows import Row
from farandole.bench.sizes import MIB

HEAD = (
    f"{'model':>14} {'type':>8} {'ranks':>5} {'threads':>7} {'batch':>6} {'lane':>7} "
    f"{'step ms':>10} {'middle half':>19} {'samples/s':>10} {'exposed ms':>10} {'MiB/rank':>9}"
)


def line_of(row: Row) -> str:
    """One row."""
    low, high = row["quartiles_ms"]
    exposed = "" if row["exposed_ms"] is None else f"{row['exposed_ms']:.2f}"
    fault = f"  WRONG: {row['fault']}" if row.get("fault") else ""
    return (
        f"{row['model']:>14} {row['precision']:>8} {row['ranks']:>5} {row['threads']:>7} "
        f"{row['global_batch']:>6} {row['lane']:>7} {row['median_ms']:>10.2f} "
        f"{f'{low:.2f} to {high:.2f}':>19} {row['samples_per_s']:>10.2f} {exposed:>10} "
        f"{row['memory_bytes'] / MIB:>9.1f}{fault}"
    )
