# SPDX-License-Identifier: Apache-2.0
"""The program that docs/ddp.md is cut from runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "ddp" / "train.py"


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
    assert "exposed communication" in done.stdout
