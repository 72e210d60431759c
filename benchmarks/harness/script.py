# SPDX-License-Identifier: Apache-2.0
"""What every run.py does: reads the command line, writes results, prints tables and targets."""

import importlib
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import machine, results
from benchmarks.harness.results import PUBLISHED, REPOSITORY, UNPUBLISHED, Place, Row
from benchmarks.harness.targets import Target, text_of


def new_parser(doc: str | None, quick: str) -> ArgumentParser:
    """For the script with this docstring; `quick`: what --quick runs."""
    parser = ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    target = parser.add_mutually_exclusive_group()
    help_text = "folder of results (build/benchmarks; none if only a part is measured)"
    target.add_argument("--output", type=Path, help=help_text)
    help_text = "write into benchmarks/results and renew the pages with these numbers"
    target.add_argument("--publish", action="store_true", help=help_text)
    return parser


def parse(parser: ArgumentParser) -> Namespace:
    """Ends the process where a part of a benchmark would be published."""
    arguments = parser.parse_args()
    if arguments.publish and is_part(arguments):
        parser.error("--publish needs a whole run: leave --quick and --lanes out")
    arguments.size = "quick" if arguments.quick else "full"
    return arguments


def is_part(arguments: Namespace) -> bool:
    """Whether something is left out that other runs measure."""
    return arguments.quick or bool(getattr(arguments, "lanes", None))


def folder_of(arguments: Namespace) -> Path | None:
    """Where results go, if anywhere."""
    if arguments.publish:
        return PUBLISHED
    given: Path | None = arguments.output
    return given or (None if is_part(arguments) else UNPUBLISHED)


@dataclass(frozen=True)
class Report:
    """What becomes of the rows of a benchmark."""

    file: str  # its results
    table: Callable[[list[Row]], str]  # of rows that were measured together; may be empty
    targets: Callable[[list[Row]], list[Target]] | None = None
    place_of: Place = lambda _: 0  # by default all rows are replaced
    plot: str = ""  # the module that draws all rows of the file, if any; it needs matplotlib

    def make(self, arguments: Namespace, measured: Iterable[list[Row]]) -> None:
        """`measured`: the rows of each table; measuring may happen on the way."""
        where = machine.describe()
        tables, rows = [], []
        for each in measured:
            tables.append(self.table(each))
            rows += [{**row, **where} for row in each]
        folder = folder_of(arguments)
        if folder is not None:
            everything = results.replace(folder / self.file, rows, self.place_of)
            if self.plot:
                importlib.import_module(self.plot).draw(everything, folder)
        print("".join(f"\n{table}\n" for table in tables if table))
        if self.targets is not None and not arguments.quick:
            print(f"{text_of(self.targets(rows))}\n")
        if folder is not None:
            print(f"results: {folder / self.file}")
        if arguments.publish:
            renew_pages()


def renew_pages() -> None:
    """With the numbers in benchmarks/results."""
    subprocess.run([sys.executable, "-m", "benchmarks.publish"], cwd=REPOSITORY, check=True)
