# SPDX-License-Identifier: Apache-2.0
"""farandole::debugger::Hook: what a program in C++ saves, and a trial of Python reads.

The program is tests/programs/debugged_training.cpp.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from farandole.debugger import Hook, ModeKeys, NoMoreData, create_trial, invoke_rule, rules

pytestmark = pytest.mark.system

BUILD = Path(__file__).parents[2] / os.environ.get("FARANDOLE_BUILD", "build/release")
PROGRAM = BUILD / "tests" / "debugged_training"
WEIGHT = np.arange(6.0).reshape(2, 3)


def run(*arguments: object, size: int = 1) -> subprocess.CompletedProcess[str]:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")
    launch = (*launcher, f"--nproc-per-node={size}") if size > 1 else ()
    return subprocess.run(
        [*launch, str(PROGRAM), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("size", [1, 2])
def test_a_trial_reads_it(size: int, tmp_path: Path) -> None:
    assert run(tmp_path, 5, size=size).returncode == 0
    trial = create_trial(tmp_path)
    assert trial.workers() == [f"worker_{rank}" for rank in range(size)]
    assert trial.steps(mode=ModeKeys.TRAIN) == [0, 1, 2, 3, 4]  # scalars are in each
    average = 2.0 * (size - 1)  # of the ranks' gradients: 4 samples, which are their rank
    for rank in range(size):
        worker = f"worker_{rank}"
        for step in (0, 2, 4):
            weight = trial.tensor("Net_fc.weight")
            assert weight.shape(step) == (2, 3)
            wanted = WEIGHT - average * step
            for name, value in (("min", wanted.min()), ("max", wanted.max())):
                assert weight.reduction_value(step, name, worker=worker) == value
            assert weight.reduction_value(step, "std", worker=worker) == pytest.approx(
                wanted.std(ddof=1)
            )
            gradient = trial.tensor("gradient/Net_fc.weight")
            assert gradient.reduction_value(step, "mean", worker=worker) == average
            assert gradient.reduction_value(step, "l2", worker=worker) == pytest.approx(
                average * 6**0.5
            )
            bias = np.arange(2.0) - 4 * step
            loss = 4 * (rank * wanted.sum() + bias.sum())
            assert trial.tensor("Sum_output_0").value(step, worker=worker) == loss
            odd = trial.tensor("odd")
            assert (odd.counts(step).zeros, odd.counts(step).inf) == (1, 1)
            assert list(odd.value(step, worker=worker)) == [0, 1, float("inf")]
            batch = trial.tensor("batch").value(step, worker=worker)
            assert np.array_equal(batch, np.full((4, 3), float(rank)))
        assert trial.tensor("gradient/Net_fc.weight").steps() == [0, 2, 4]
        assert trial.tensor("scalar/half").value(3, worker=worker) == 1.5
    assert trial.tensor_names(collection="losses") == ["Sum_output_0"]
    assert trial.tensor_names(collection="biases") == ["Net_fc.bias"]
    assert trial.tensor_names(collection="inputs") == ["batch"]
    with pytest.raises(NoMoreData):  # it has ended
        trial.wait_for_steps([9])
    rule = rules.NonfiniteGradient(create_trial(tmp_path))
    with pytest.raises(NoMoreData):
        invoke_rule(rule)
    assert not rule.findings


def test_a_training_that_goes_on_counts_on(tmp_path: Path) -> None:
    for _ in range(2):
        assert run(tmp_path, 3).returncode == 0
    trial = create_trial(tmp_path)
    assert trial.steps(mode=ModeKeys.TRAIN) == list(range(6))
    assert trial.tensor("gradient/Net_fc.bias").steps() == [0, 2, 4]
    hook = Hook(tmp_path)
    assert hook.step == 5  # Python's goes on, too
    assert len(list((tmp_path / "tensors").glob("worker_0.*.jsonl"))) == 2


def test_a_killed_program_leaves_what_it_had_saved(tmp_path: Path) -> None:
    assert run(tmp_path, 3, "killed").returncode == -signal.SIGKILL
    trial = create_trial(tmp_path)
    assert trial.tensor("scalar/half").steps() == [0, 1, 2]
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([9])


def test_what_it_does_not_take_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, 0, "broken")
    assert ended.returncode == 0
    names = [
        line.rpartition("[")[2].rstrip("]") for line in ended.stdout.splitlines() if "[" in line
    ]
    assert names == [
        *("debugger-save-interval", "debugger-collection", "debugger-reduction"),
        *("debugger-mode", "debugger-file"),
    ]


def test_a_full_disk_ends_what_is_saved_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / "worker_0.0000.1.safetensors").symlink_to("/dev/full")
    ended = run(tmp_path, 5)
    assert ended.returncode == 0
    assert ended.stderr.count("the debugger saves nothing more") == 1
    assert "No space left on device" in ended.stderr
    assert create_trial(tmp_path).loaded_all_steps
