# SPDX-License-Identifier: Apache-2.0
"""A part of docs/benchmarks.md."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.results import Row


@dataclass(frozen=True)
class Section:
    """What the page says of rows in one file of results."""

    file: str
    introduction: str  # with fields of the first row in braces, and {date}
    summary: Callable[[list[Row]], str]  # Markdown
    has: Callable[[Row], bool] = lambda _: True

    def text(self, rows: list[Row]) -> str:
        """Empty if nothing was measured."""
        rows = [row for row in rows if self.has(row)]
        if not rows:
            return ""
        introduction = self.introduction.format(**rows[0], date=rows[0]["timestamp"][:10])
        return f"{introduction}\n\n{self.summary(rows)}"
