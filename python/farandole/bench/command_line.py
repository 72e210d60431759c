# SPDX-License-Identifier: Apache-2.0
"""The command `farandole bench`, which passes on to its parts."""

from __future__ import annotations

import argparse
import signal
import sys

from farandole.bench import ranks
from farandole.bench.outcome import USAGE

_DESCRIPTION = """
Measures collectives and training steps on this machine, alone or as the program of a launcher, and
predicts how a step that was recorded scales on others.
"""
_EPILOG = """
examples:
  farandole bench collectives -n 4 -b 8 -e 1G -f 2
  torchrun --nproc-per-node 8 -m farandole bench collectives all_reduce all_gather
  farandole bench train --model resnet50
  farandole bench predict --record train:setup -o step.json

`farandole bench collectives --help` and so on have the options.
Exit status: 0 all was measured and is right, 1 wrong results or a failure, 2 wrong options.
"""


def main(arguments: list[str]) -> int:
    """Runs `farandole bench` with these arguments; returns its exit status."""
    if ranks.launcher() != "alone":  # Ctrl-C goes to all ranks, and none has anything to save
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if arguments[:1] == ["collectives"]:
        from farandole.bench.collectives.command_line import main as run_collectives

        return run_collectives(arguments[1:])
    if arguments[:1] == ["train"]:
        from farandole.bench.train.command_line import main as run_training

        return run_training(arguments[1:])
    if arguments[:1] == ["predict"]:
        from farandole.bench.predict.command_line import main as run_prediction

        return run_prediction(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="farandole bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["collectives", "train", "predict"], help="a part")
    if not arguments:
        parser.print_help(sys.stderr)
        return USAGE
    parser.parse_args(arguments[:1])
    return USAGE
