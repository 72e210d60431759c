# SPDX-License-Identifier: Apache-2.0
"""The trainings of docs/examples.md: a few steps of each, and on from a checkpoint."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest

import run_command
import warm_python

EXAMPLES = Path(__file__).parents[2] / "examples"
RESNET = EXAMPLES / "python" / "train_resnet.py"
SMALL_RESNET = [
    *("--model", "resnet18", "--image-size", "32", "--shapes", "48", "--batch", "16"),
    *("--epochs", "2", "--warm-up", "1", "--workers", "1", "--log-every", "1"),
]


def train(program: Path, *arguments: str | Path, ranks: int = 2) -> None:
    done = run_command.run("-n", f"{ranks}", program, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def rows(output: Path) -> list[dict[str, str]]:
    """Of the log, without times."""
    with (output / "log.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert all(row.pop("images_per_s") for row in found if row["loss"])
    return found


def column(output: Path, name: str) -> list[float]:
    return [float(row[name]) for row in rows(output) if row[name]]


@pytest.mark.parametrize("program", [RESNET], ids=lambda path: path.stem)
def test_help_explains_the_options(program: Path) -> None:
    command = [warm_python.executable(), str(program), "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for option in ("--data", "--batch", "--epochs", "--output", "--stop-at"):
        assert option in printed


def test_a_resnet_goes_on_from_the_middle_of_an_epoch(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(RESNET, *SMALL_RESNET, "--output", whole)
    assert [int(row["step"]) for row in rows(whole)] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert len(column(whole, "top5")) == 2
    train(RESNET, *SMALL_RESNET, "--output", parts, "--stop-at", "2")
    train(RESNET, *SMALL_RESNET, "--output", parts)
    assert rows(parts) == rows(whole)


def test_a_resnet_trains_in_half_precision_and_with_lars(tmp_path: Path) -> None:
    few = [*SMALL_RESNET, "--stop-at", "2", "--schedule", "polynomial"]
    train(RESNET, *few, "--precision", "fp16", "--loss-scale", "static", "--output", tmp_path / "a")
    train(RESNET, *few, "--precision", "bf16", "--output", tmp_path / "b")
    train(RESNET, *few, "--optimizer", "lars", "--output", tmp_path / "c")
    first = column(tmp_path / "a", "loss")
    assert first == pytest.approx(column(tmp_path / "b", "loss"), rel=0.05)
    assert column(tmp_path / "c", "loss")[0] == pytest.approx(first[0], rel=0.05)
