# SPDX-License-Identifier: Apache-2.0
"""What ranks say to the driver while they run."""

from __future__ import annotations

from farandole.run.function_meeting import send


def log_to_driver(message: str) -> None:
    """Print a line in the program that called run(): on the driver, in the notebook's cell.

    Lines of all ranks appear in the order in which they arrive, as they are. In a process that is
    no rank of run() (a script of its own, a worker of a DataLoader) the line is printed there.

    Threads: any.
    """
    if not send(str(message)):
        print(message, flush=True)
