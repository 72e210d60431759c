# SPDX-License-Identifier: Apache-2.0
"""The files of benchmarks/results: one line of JSON a row; git keeps the history."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Place = Callable[[Row], Any]  # of what was measured together: rows are sorted by it


def replace(path: Path, rows: list[Row], place_of: Place) -> list[Row]:
    """Writes `rows` in place of those with their places; gives all that the file has now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    measured = {place_of(row) for row in rows}
    kept = [row for row in map(json.loads, lines) if place_of(row) not in measured]
    everything = sorted([*kept, *rows], key=place_of)
    path.write_text("".join(json.dumps(row) + "\n" for row in everything))
    return everything
