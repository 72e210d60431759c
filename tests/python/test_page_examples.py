# SPDX-License-Identifier: Apache-2.0
"""The programs that docs/ddp.md and docs/zero.md are cut from run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("ddp", ["exposed communication"]),
        ("zero", ["bytes of state on rank 1", "have different hyperparameters"]),
    ],
)
def test_the_program_of_the_page_runs_on_two_ranks(page: str, printed: list[str]) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / page / "train.py")],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for text in printed:
        assert text in done.stdout
