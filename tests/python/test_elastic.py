# SPDX-License-Identifier: Apache-2.0
"""Trainings that lose ranks and get new ones: what survives, and that nothing hangs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import elastic_training
import run_command

TRAINING = Path(elastic_training.__file__)
DEADLINE_S = 100


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`farandole run` with these arguments, to its end."""
    return subprocess.run(
        run_command.command(*arguments),
        env=run_command.environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def results(folder: Path) -> list[dict[str, Any]]:
    """Of the ranks that have finished, in rank order; each is the same training, retraced."""
    found = [json.loads(path.read_text()) for path in folder.glob("result-*")]
    for result in found:
        steps = [step for _, step in result["history"]]
        assert result["weights"] == elastic_training.retraced(result["first"], steps)
        assert result["history"] == found[0]["history"]
    return sorted(found, key=lambda each: each["rank"])


def check_epochs(history: list[tuple[int, list[list[int]]]], epochs: int) -> None:
    """Each sample is there in each epoch, and once if the ranks could share equally."""
    for epoch in range(epochs):
        steps = [step for each, step in history if each == epoch]
        taken = [index for step in steps for batch in step for index in batch]
        assert set(taken) == set(range(elastic_training.SAMPLES))
        assert len(taken) <= elastic_training.SAMPLES + 2 * elastic_training.BATCH


@pytest.mark.parametrize(
    ("victim", "place"),
    [
        (1, "start"), (0, "init"), (0, "sync"), (2, "step"), (0, "backward"), (1, "backward"),
        (0, "commit"),
    ],
)  # fmt: skip
def test_survivors_of_a_killed_rank_go_on(victim: int, place: str, tmp_path: Path) -> None:
    when = ("0", "0") if place in ("start", "init", "sync") else ("1", "1")
    kill = ("--kill", str(victim), *when, place)
    done = run("-n", "3", "--min-ranks", "2", TRAINING, tmp_path, *kill)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"rank process {victim} on localhost was lost (killed by SIGKILL); 2 are left" in (
        done.stderr
    )
    found = results(tmp_path)
    assert [each["rank"] for each in found] == [0, 1]
    check_epochs(found[0]["history"], 3)
    sizes = [len(step) for _, step in found[0]["history"]]
    if place in ("step", "backward", "commit"):
        assert sizes == [3] * 5 + [2] * (len(sizes) - 5)  # 4 steps, and 1 of the next epoch
        assert found[0]["resets"] == [2]


def test_fewer_ranks_than_the_minimum_end_the_job(tmp_path: Path) -> None:
    done = run("-n", "2", "--min-ranks", "2", TRAINING, tmp_path, "--kill", "1", "1", "1", "step")
    assert done.returncode == 137, done.stderr[-3000:]
    assert not results(tmp_path)
    assert "1 ranks are left, and the job needs 2." in done.stderr
    assert "[0] farandole.CommError: 1 ranks are left" in done.stderr.replace("[rank0]: ", "")
    assert "(1: killed by SIGKILL)" in done.stderr
    assert "rank 1 of 2 failed: killed by SIGKILL" in done.stderr


def discovery(folder: Path, first: str) -> str:
    """A script that prints the file of hosts, which the training changes."""
    (folder / "hosts").write_text(first + "\n")
    return str(run_command.script(folder, f"cat {folder}/hosts", name="discover"))


def test_ranks_come_and_go_in_order(tmp_path: Path) -> None:
    script = discovery(tmp_path, "localhost:2")
    hosts = json.dumps(["localhost:2", "localhost:3", "localhost:2"])
    done = run(
        *("-n", "2", "--min-ranks", "1", "--max-ranks", "3", "--host-discovery-script", script),
        *(TRAINING, tmp_path, "--hosts", hosts, "--pause", "0.05"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = results(tmp_path)
    assert found[0]["sizes"] == [2, 3, 2]
    assert [each["rank"] for each in found] == [0, 1]
    assert found[0]["resets"] == [3, 2]
    epochs = found[0]["history"][-1][0] + 1
    check_epochs(found[0]["history"], epochs)
    assert "back to commit" not in done.stderr  # nobody has lost a step
