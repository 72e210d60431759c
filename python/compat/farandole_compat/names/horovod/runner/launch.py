# SPDX-License-Identifier: Apache-2.0
"""horovodrun, also `python -m horovod.runner.launch`."""

from __future__ import annotations

import sys

from farandole.horovod import command_line
from farandole.horovod.flags import Flags

from horovod import __version__


def run_commandline() -> int:
    """Run the command line; its exit status."""
    return command_line.main(sys.argv[1:], __version__)


def parse_args() -> Flags:
    """The flags of the command line; None for those that were not given."""
    return command_line.parse(sys.argv[1:], __version__)


if __name__ == "__main__":
    sys.exit(run_commandline())
