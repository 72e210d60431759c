# SPDX-License-Identifier: Apache-2.0
"""The programs that docs/ddp.md, docs/zero.md, docs/amp.md, docs/sampler.md
and docs/profiler.md are cut from run, and that of docs/stories.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from farandole.profiler import Profile

import warm_python

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("ddp", ["exposed communication"]),
        ("amp", ["on rank 0 is 32768", "on rank 1 is 32768", "of 'bias' (bucket 0) on rank 1."]),
        (
            "sampler",
            ["epoch 1: 4 batches on rank 1", "epoch 2: 7 batches on rank 0", "over 100 samples"],
        ),
        ("profiler", ["OverallSystemUsage: the use of algo-1", "algo-1 cpu"]),
        ("zero", ["bytes of state on rank 1", "have different hyperparameters"]),
    ],
)
def test_the_program_of_the_page_runs_on_two_ranks(page: str, printed: list[str]) -> None:
    output = run(str(EXAMPLES / page / "train.py"))
    for text in printed:
        assert text in output


def run(*command: str) -> str:
    """What two ranks print."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [warm_python.executable(), *launcher, *command],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_program_of_the_stories_is_recorded_with_its_workers(tmp_path: Path) -> None:
    few = ["--steps", "3", "--batch", "2", "--image-size", "32", "--latency-ms", "1"]
    output = run(str(EXAMPLES / "profiler/late_data.py"), str(tmp_path), *few, "--workers", "1")
    assert "images/s with num_workers=1" in output
    for rank in Profile(tmp_path).timeline.ranks():
        assert {span.whole("num_workers") for span in rank.spans("data")} == {1}
        assert len(rank.spans("forward")) == 3
