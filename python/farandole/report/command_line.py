# SPDX-License-Identifier: Apache-2.0
"""The command `farandole report`."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from farandole.errors import Error, InvalidArgument, sentences
from farandole.foreign_text import shown
from farandole.report.outcome import DONE, USAGE
from farandole.report.requirements import check_numpy

_EPILOG = """
examples:
  farandole report profile
  farandole report profile -o today.html --json today.json
  farandole report profile --tensors tensors
  farandole report --compare before after

Exit status: 0 the page was written, also if rules fired or files could not be read; 2 the options
are wrong, there is no such folder, the page cannot be written, or numpy is not installed.
"""


_PAGE, _COMPARISON = "report.html", "comparison.html"


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="farandole report",
        description="Writes one page on a run that farandole.profiler has recorded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runs = parser.add_mutually_exclusive_group(required=True)
    runs.add_argument(
        "folder", nargs="?", metavar="DIR", help="the folder that the run was recorded to"
    )
    runs.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="two such folders")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"the page; default: {_PAGE} in DIR, with --compare {_COMPARISON} in AFTER",
    )
    parser.add_argument(
        "--tensors",
        metavar="FOLDER",
        action="append",
        default=[],
        help="what a hook of farandole.debugger has saved of the run; with --compare give it twice",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write the figures to FILE as JSON, for programs"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    folders = options.compare or [options.folder]
    if len(options.tensors) not in (0, len(folders)):
        parser.error("--tensors is of each run: give it once, or with --compare twice or not")
    runs = list(itertools.zip_longest(folders, options.tensors))
    output = options.output or str(Path(folders[-1], _COMPARISON if options.compare else _PAGE))
    try:
        check_numpy()
        found, text, lines = _compared(*runs) if options.compare else _one(*runs)
        _write(output, text)
        if options.json:
            _write(options.json, json.dumps(found) + "\n")
    except Error as error:
        print(shown(str(error)), file=sys.stderr)
        return USAGE
    print(shown("\n".join([*lines, f"The page is in {output}."])))
    return DONE


_Run = tuple[str, str | None]
"""The folder of a profile, and that of the tensors."""


def _one(run: _Run) -> tuple[Any, str, list[str]]:
    """The figures of a run, the page, and what to print."""
    from farandole.report.page import page

    figures = _figures(run)
    fired = [rule for rule in figures["rules"] if rule["fired"]]
    lines = [f"{rule['rule']}: {rule['what']} {rule['advice']}" for rule in fired]
    return figures, page(figures), [*(lines or ["No rule fired."]), *figures["missing"]]


def _compared(before: _Run, after: _Run) -> tuple[Any, str, list[str]]:
    from farandole.report.comparison import comparison_of
    from farandole.report.comparison_page import comparison_page, gain_of

    found = comparison_of(_figures(before), _figures(after))
    return found, comparison_page(found), [gain_of(found)]


def _figures(run: _Run) -> dict[str, Any]:
    from farandole.debugger.trial import create_trial
    from farandole.profiler.profile import Profile
    from farandole.report.figures import figures_of
    from farandole.report.tensor_rules import reports_of

    folder, tensors = run
    if tensors is None:
        return figures_of(Profile(folder))
    trial = create_trial(tensors)
    figures = figures_of(Profile(folder), reports_of(trial))
    if trial.damaged_lines:
        figures["unread"].append(f"{tensors}: {trial.damaged_lines} damaged lines were left out.")
    return figures


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(shown(text), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            sentences(
                "report-output",
                f"the report could not be written to '{file}'.",
                f"{error.strerror}.",
                "pass with -o a file in a folder that exists and may be written to.",
            )
        ) from error
