# SPDX-License-Identifier: Apache-2.0
"""Writes and prints what one run has measured."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import machine
import results
from report import text_of
from rounds import Row

RESULTS = Path(__file__).resolve().parent.parent / "results"


def publish(
    arguments: Namespace,
    tables_of_rows: Iterable[list[Row]],
    file: str,
    place_of: Callable[[Row], Any],
    outcome: Any,
) -> None:
    """Rows into `file` in the folder that was asked for, or in results/ if all is measured.

    `outcome`: a module with table(rows) and targets(rows).
    """
    where = machine.describe()
    tables, rows = [], []
    for measured in tables_of_rows:
        tables.append(outcome.table(measured))
        rows += [{**row, **where} for row in measured]
    complete = not arguments.quick and not arguments.lanes
    output = arguments.output or (RESULTS if complete else None)
    if output:
        results.replace(output / file, rows, place_of)
    print("".join(f"\n{each}\n" for each in tables))
    if not arguments.quick:
        print(text_of(outcome.targets(rows)))


def say(line: str) -> None:
    """At once."""
    print(line, flush=True)
