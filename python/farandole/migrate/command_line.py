# SPDX-License-Identifier: Apache-2.0
"""The command `farandole migrate check`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from farandole.errors import Error
from farandole.foreign_text import shown
from farandole.migrate.answer import Verdict
from farandole.migrate.check import Finding, check
from farandole.migrate.known import TOPS

WORKS, NOT_ALL, USAGE = 0, 1, 2
_EPILOG = """
examples:
  farandole migrate check train.py launch.sh
  farandole migrate check notebooks/ --json

Files are read, and never run: scripts of Python and of shells, notebooks, and those in folders.
Exit status: 0 all works; 1 something is refused or unknown; 2 the options are wrong, or a file
cannot be read.
"""


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    options = make_parser().parse_args(arguments)
    try:
        found = check(options.paths)
    except Error as error:
        print(shown(str(error)), file=sys.stderr)
        return USAGE
    print(_as_json(found) if options.json else shown(_as_text(found)))
    return WORKS if all(each.answer.is_good for each in found) else NOT_ALL


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="farandole migrate",
        description="Moves scripts to Farandole that were written for other libraries.",
    )
    commands = parser.add_subparsers(title="commands", required=True)
    checking = commands.add_parser(
        "check",
        help="what scripts use of Horovod, SageMaker's libraries and torch, and what they get",
        description="Lists what scripts use of Horovod, SageMaker's libraries and "
        "torch.distributed, and what each of it gets from Farandole.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checking.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    checking.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def _as_text(found: Sequence[Finding]) -> str:
    counts = Counter(each.answer.verdict for each in found)
    total = [f"{verdict.value}: {counts[verdict]}" for verdict in Verdict if counts[verdict]]
    lines = [line for each in found for line in _lines(each)]
    if needs_compat(found):
        lines.append("farandole-compat is not installed here: pip install ./python/compat")
    return "\n".join([*lines, ", ".join(total) or "nothing of these libraries is used"])


def needs_compat(found: Iterable[Finding]) -> bool:
    """Whether names of other libraries are used, and the package that has them is missing."""
    is_used = any(each.text.partition(".")[0] in TOPS for each in found)
    return is_used and importlib.util.find_spec("farandole_compat") is None


def _lines(finding: Finding) -> list[str]:
    numbers = ", ".join(map(str, finding.lines))
    head = f"{finding.path}:{numbers}: {finding.answer.verdict.value}: {finding.text}"
    return [head, *(f"    {label}: {text}" for label, text in finding.answer.notes)]


def _as_json(found: Sequence[Finding]) -> str:
    rows = [
        {
            "path": str(each.path),
            "lines": each.lines,
            "use": each.text,
            "verdict": each.answer.verdict.value,
            "notes": [{"label": label, "text": text} for label, text in each.answer.notes],
        }
        for each in found
    ]
    works = all(each.answer.is_good for each in found)
    return json.dumps({"works": works, "needs_compat": needs_compat(found), "uses": rows}, indent=2)
