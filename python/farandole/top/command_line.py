# SPDX-License-Identifier: Apache-2.0
"""The command `farandole top`."""

from __future__ import annotations

import argparse
import sys
import time

from farandole.errors import Error
from farandole.foreign_text import shown
from farandole.report.outcome import DONE, USAGE
from farandole.report.requirements import check_numpy

_CLEAR = "\x1b[H\x1b[J"
_EPILOG = """
q or Ctrl-C ends it.

Exit status: 0 the table was shown; 2 the options are wrong, there is no such folder, or numpy is
not installed.
"""


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="farandole top",
        description="Shows what the ranks and hosts of a running job do, by what "
        "farandole.profiler records.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder that the run is recorded to")
    parser.add_argument("--once", action="store_true", help="show the table once, for scripts")
    parser.add_argument(
        "--interval",
        type=float,
        default=2,
        metavar="S",
        help="seconds between updates; default: %(default)s",
    )
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not options.interval >= 0.1:
        parser.error("--interval must be at least 0.1")
    try:
        check_numpy()
        if options.once:
            print(_screen(options.folder))
        else:
            _refresh(options.folder, options.interval)
    except Error as error:
        print(shown(str(error)), file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        pass
    return DONE


def _screen(folder: str) -> str:
    from farandole.top.recent import now_of
    from farandole.top.screen import screen_of

    return shown(screen_of(now_of(folder), folder, time.time()))


def _refresh(folder: str, interval_s: float) -> None:
    """Until q is pressed."""
    from farandole.top.keyboard import keys_heard, pressed

    with keys_heard():
        print(_CLEAR + _screen(folder), flush=True)
        while not pressed(b"q", interval_s):
            print(_CLEAR + _screen(folder), flush=True)
