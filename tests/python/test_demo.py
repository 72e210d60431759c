# SPDX-License-Identifier: Apache-2.0
"""The demo and the quickstart run as README.md says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm_python

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(python: str, *command: str, seconds: int) -> str:
    done = subprocess.run(
        [python, *command], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.timeout(400)
def test_demo_trains_as_well_as_one_process_on_any_number_of_ranks() -> None:
    demo = str(EXAMPLES / "python" / "train_digits.py")
    output = run(warm_python.executable(), demo, seconds=200)
    assert len(re.findall(r"^epoch .*loss .*test accuracy .*images/s", output, re.MULTILINE)) == 12
    found = re.search(r"largest deviation (\S+), tolerance (\S+)", output)
    assert found
    assert float(found[1]) <= float(found[2])
    found = re.search(r"^test accuracy ([\d.]+)%", output, re.MULTILINE)
    assert found
    assert float(found[1]) >= 97
    for name in ("farandole", "gloo", "one process"):
        assert re.search(rf"^  {name} +\d ranks? +[\d,]+ +[\d.]+ x gloo", output, re.MULTILINE)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    alone = run(warm_python.executable(), *launcher, demo, seconds=180)
    assert losses(alone) == pytest.approx(losses(output), abs=1e-4)


def losses(output: str) -> list[float]:
    """Of each epoch."""
    return [float(loss) for loss in re.findall(r"^epoch .*loss (\d+\.\d{6})", output, re.MULTILINE)]


@pytest.mark.timeout(100)
def test_quickstart_runs_on_two_ranks() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    output = run(sys.executable, *launcher, str(EXAMPLES / "quickstart" / "train.py"), seconds=90)
    for rank in range(2):
        check_learning(output, f"rank {rank} of 2")


def test_quickstart_runs_alone() -> None:
    output = run(warm_python.executable(), str(EXAMPLES / "quickstart" / "train.py"), seconds=60)
    check_learning(output, "rank 0 of 1")


def check_learning(output: str, rank: str) -> None:
    """Guessing has a loss of ln 10 and an accuracy of 0.1."""
    # Without a newline at the end: lines of two ranks may share one.
    found = re.findall(rf"{rank}: epoch \d, loss (\S+), accuracy ([\d.]+)", output)
    assert len(found) == 5
    assert float(found[-1][0]) < 1
    assert float(found[-1][1]) > 0.7
