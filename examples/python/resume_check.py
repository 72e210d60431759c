# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint is of the training that goes on."""

from __future__ import annotations

import sys


def check_steps(saved: int, steps: int) -> None:
    """Ends the program if the schedule of learning rates, which was saved, has another end.

    `saved`: all steps of the training that saved the checkpoint; `steps`: of this one.
    """
    if saved != steps:
        sys.exit(
            f"The checkpoint is of a training of {saved} steps, and this one has {steps}: its "
            "learning rates would be wrong. Pass the same --epochs and --batch, or another "
            "--output."
        )
