# SPDX-License-Identifier: Apache-2.0
"""The program that docs/zero.md is cut from runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "zero" / "train.py"


def test_the_program_of_the_page_runs_on_two_ranks() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "bytes of state on rank 1" in done.stdout
    assert "have different hyperparameters" in done.stdout
