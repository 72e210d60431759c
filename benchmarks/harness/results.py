# SPDX-License-Identifier: Apache-2.0
"""Files of results: one line of JSON a row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
PUBLISHED = REPOSITORY / "benchmarks" / "results"  # git keeps their history; the pages show them
UNPUBLISHED = REPOSITORY / "build" / "benchmarks"  # git ignores these

Row = dict[str, Any]
Place = Callable[[Row], Any]  # of what was measured together: rows are sorted by it


def rows_of(path: Path) -> list[Row]:
    """None if nobody has measured that yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def replace(path: Path, rows: list[Row], place_of: Place) -> list[Row]:
    """Writes `rows` in place of those with their places; gives all that the file has now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = {place_of(row) for row in rows}
    kept = [row for row in rows_of(path) if place_of(row) not in measured]
    everything = sorted([*kept, *rows], key=place_of)
    path.write_text("".join(json.dumps(row) + "\n" for row in everything))
    return everything
