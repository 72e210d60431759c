# SPDX-License-Identifier: Apache-2.0
"""The programs that docs/debugger.md is cut from run."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

import warm_python

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "examples" / "debugger"
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [warm_python.executable(), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_a_training_is_watched_stopped_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = [*LAUNCHER, str(EXAMPLES / "train.py"), str(folder), "1000000"]
    with subprocess.Popen(
        [warm_python.executable(), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as training:
        try:
            deadline = time.monotonic() + 60
            while not folder.is_dir():
                assert training.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            watched = run(str(EXAMPLES / "watch.py"), str(folder))
            output, errors = training.communicate(timeout=60)
        finally:
            training.kill()
    assert training.returncode == 0, errors[-3000:]
    assert "stopped: VanishingGradient at step 0: step 0: 'gradient/Seq" in watched.stdout
    stops = sorted(line for line in output.splitlines() if "stops at step" in line)
    assert [line[:6] for line in stops] == ["rank 0", "rank 1"]
    assert len({line.split()[-1] for line in stops}) == 1

    assert "no gradient has vanished" not in watched.stdout
    done = run(str(EXAMPLES / "read.py"), str(folder))
    assert "['worker_0', 'worker_1']" in done.stdout
    assert "0 Sequential_0.weight worker_1 has a weight above 0.24" in done.stdout


def test_a_training_with_evaluations(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "evaluate.py"), str(tmp_path / "out"))
    assert (
        "[0, 100] [0, 1] ['1_output_0', '2_output_0', 'largest', 'scalar/accuracy']" in done.stdout
    )
    assert "(8, 4)" in done.stdout


def test_the_benchmark_runs_and_verifies_what_it_measures() -> None:
    command = [warm_python.executable(), "-m", "benchmarks.debugger.run", "--quick"]
    done = subprocess.run(
        command, cwd=EXAMPLES.parents[1], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(lane in done.stdout for lane in ("no hook", "gradients", "everything", "idle"))
