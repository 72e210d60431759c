# SPDX-License-Identifier: Apache-2.0
"""Results of one operation."""

from collections.abc import Iterable

from benchmarks.harness.results import Row

TITLES = {
    "send_recv": "send_recv, half of there and back",
    "send_stream": "send_recv, one way, several messages in flight",
}


def kind_of(row: Row) -> str:
    """What a row is about: an operation, or the time of imports."""
    return "import" if row["lane"] == "import" else row.get("operation", "all_reduce")


class Results:
    """Rows of one operation, by lane, ranks and bytes."""

    def __init__(self, rows: Iterable[Row], operation: str = "all_reduce") -> None:
        rows = list(rows)
        own = [row for row in rows if kind_of(row) == operation]
        self.operation, self.title = operation, TITLES.get(operation, operation)
        self.rows = [row for row in own if "median_us" in row]
        self.cells = {(row["lane"], row["ranks"], row["bytes"]): row for row in self.rows}
        self.cannot = {row["lane"]: row["cannot"] for row in own if "cannot" in row}
        self.import_time = next((row for row in rows if row["lane"] == "import"), None)

    @property
    def ranks(self) -> list[int]:
        """All rank counts."""
        return sorted({row["ranks"] for row in self.rows})

    def sizes(self, ranks: int) -> list[int]:
        """All sizes measured with `ranks`."""
        return sorted({row["bytes"] for row in self.rows if row["ranks"] == ranks})

    def median(self, lane: str, ranks: int, size: int) -> float | None:
        """Median in microseconds, None if not measured."""
        cell = self.cells.get((lane, ranks, size))
        return cell["median_us"] if cell else None

    def ratio(self, ours: str, peer: str, ranks: int, size: int) -> float | None:
        """How many times faster we are."""
        ours_us, peer_us = self.median(ours, ranks, size), self.median(peer, ranks, size)
        return peer_us / ours_us if ours_us and peer_us else None
