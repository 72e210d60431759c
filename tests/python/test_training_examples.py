# SPDX-License-Identifier: Apache-2.0
"""The trainings of docs/examples.md: a few steps of each, and on from a checkpoint."""

from __future__ import annotations

import csv
import difflib
import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import run_command
import warm_python
from ranks import WHOLE_MATRIX

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / "examples" / "python"
MIGRATE = REPOSITORY / "examples" / "migrate"
# `make build` compiles them beside the C++ tests.
CPP = REPOSITORY / os.environ.get("FARANDOLE_BUILD", "build/release") / "tests"
# Each training in Python, in C++, and options that make it small: 6 steps in 2 epochs.
SMALL = ("--image-size", "32", "--workers", "1", "--log-every", "1", "--epochs", "2")
TRAININGS = {
    "resnet": (
        PYTHON / "train_resnet.py",
        CPP / "train_resnet",
        (*SMALL, "--model", "resnet18", "--shapes", "48", "--batch", "16", "--warm-up", "1"),
    ),
    "unet": (
        PYTHON / "train_unet.py",
        CPP / "train_unet",
        (*SMALL, "--width", "8", "--shapes", "48", "--batch", "16"),
    ),
}
PROGRAMS = [program for training in TRAININGS.values() for program in training[:2]]
# Of what takes long, Python alone, but in whole matrices; both languages are in
# test_it_goes_on_in_the_middle_of_an_epoch_in_either_language.
LANGUAGES = [pytest.param(0, id="python")]
if WHOLE_MATRIX:
    LANGUAGES.append(pytest.param(1, id="cpp"))


def train(program: Path, *arguments: str | Path, ranks: int = 2) -> str:
    done = run_command.run("-n", f"{ranks}", program, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def rows(output: Path) -> list[dict[str, float]]:
    """Of the log, without times."""
    with (output / "log.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert all(row.pop("images_per_s") for row in found if row["loss"])
    return [{name: float(text) for name, text in row.items() if text} for row in found]


def is_close(found: list[dict[str, float]], expected: list[dict[str, float]]) -> bool:
    """As two languages may round differently, and later steps start from that."""
    return len(found) == len(expected) and all(
        row == pytest.approx(wanted, rel=1e-3) for row, wanted in zip(found, expected, strict=True)
    )


@pytest.mark.system
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_help_explains_the_options(program: Path) -> None:
    command = [warm_python.executable()] if program.suffix == ".py" else []
    done = subprocess.run(
        [*command, str(program), "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    for option in ("--data", "--batch", "--epochs", "--output", "--stop-at"):
        assert option in done.stdout


def said_by(program: Path, *arguments: str) -> str:
    """Of one that ends with an error."""
    command = [warm_python.executable()] if program.suffix == ".py" else []
    command += [str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    return done.stderr


@pytest.mark.system
def test_options_that_do_not_exist_are_refused() -> None:
    assert "--bach is not an option" in said_by(CPP / "train_resnet", "--bach", "16")
    assert "--model vgg: it is resnet18" in said_by(CPP / "train_resnet", "--model", "vgg")
    assert "--batch x: it is a number" in said_by(CPP / "train_resnet", "--batch", "x")
    assert "invalid choice: 'vgg'" in said_by(PYTHON / "train_resnet.py", "--model", "vgg")


@pytest.mark.system
@pytest.mark.parametrize("name", TRAININGS)
def test_what_decodes_images_is_named_where_it_is_absent(name: str, tmp_path: Path) -> None:
    in_python, in_cpp, _ = TRAININGS[name]
    # The programs of the tests are built without OpenCV.
    assert "libopencv-dev" in said_by(in_cpp, "--data", f"{tmp_path}")
    assert "not a folder" in said_by(PYTHON / "train_resnet.py", "--data", f"{tmp_path}/none")
    for part, suffix in (("images", "jpeg"), ("masks", "png")):
        (tmp_path / "train" / part).mkdir(parents=True)
        (tmp_path / "train" / part / f"0.{suffix}").touch()
    if importlib.util.find_spec("torchvision") is None:
        assert "pip install torchvision" in said_by(in_python, "--data", f"{tmp_path}")


@pytest.mark.system
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_training_without_images_for_a_step_is_refused(program: Path) -> None:
    sizes = ["--image-size", "16", "--workers", "0"]
    assert "--batch 16: there are only 8 images" in said_by(
        program, *sizes, "--shapes", "8", "--batch", "16"
    )
    assert "no images to test with" in said_by(program, *sizes, "--shapes", "3", "--batch", "2")
    assert "--batch 0: 1 ranks cannot share it" in said_by(program, *sizes, "--batch", "0")


@pytest.mark.system
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_log_may_have_no_rows_of_steps(program: Path, tmp_path: Path) -> None:
    small = ["--image-size", "16", "--workers", "0", "--shapes", "16", "--batch", "8"]
    output = ["--epochs", "1", "--log-every", "0", "--output", tmp_path]
    assert re.findall(r"step (\d+):", train(program, *small, *output, ranks=1)) == ["2"]


@pytest.mark.system
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_training_of_another_length_is_refused(program: Path, tmp_path: Path) -> None:
    small = ["--image-size", "16", "--workers", "0", "--shapes", "16", "--batch", "8"]
    small += ["--output", str(tmp_path)]
    train(program, *small, "--epochs", "1", ranks=1)
    text = said_by(program, *small, "--epochs", "3")
    assert "a training of 2 steps, and this one has 6" in text


def test_folders_of_different_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PYTHON))
    program = importlib.import_module("train_resnet")
    classes = {"train": ["cat", "dog"], "val": ["dog"]}
    monkeypatch.setattr(
        program, "image_folder", lambda path: SimpleNamespace(classes=classes[path.name])
    )
    with pytest.raises(SystemExit, match="data/train and data/val have different classes"):
        program.load_data(SimpleNamespace(data=Path("data"), image_size=16))


def test_a_mask_with_another_class_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PYTHON))
    decoder = SimpleNamespace(
        decode_image=lambda path, mode: torch.full((mode, 4, 4), 2, dtype=torch.uint8),
        ImageReadMode=SimpleNamespace(RGB=3, UNCHANGED=1),
    )
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(io=decoder))
    monkeypatch.setitem(sys.modules, "torchvision.io", decoder)
    for part, suffix in (("images", "jpeg"), ("masks", "png")):
        (tmp_path / part).mkdir()
        (tmp_path / part / f"0.{suffix}").touch()
    folder = importlib.import_module("mask_folder").MaskFolder
    assert int(folder(tmp_path, 4, 3)[0][1].max()) == 2
    with pytest.raises(ValueError, match=r"masks/0.png has a class 2, and --classes is 2"):
        folder(tmp_path, 4, 2)[0]


@pytest.mark.system
def test_a_log_without_losses_is_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.csv").write_text("step,loss,top1\n")
    said = said_by(PYTHON / "plot_training.py", str(tmp_path), str(tmp_path / "curves.png"))
    assert said == "There are no losses to draw yet.\n"


def test_early_stopping_waits_for_a_better_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PYTHON)
    early_stopping = importlib.import_module("early_stopping").EarlyStopping(patience=2)
    metrics = [0.3, 0.4, 0.4, 0.5, 0.5, 0.4]
    assert [early_stopping.should_stop(metric) for metric in metrics] == [False] * 5 + [True]
    resumed = importlib.import_module("early_stopping").EarlyStopping(patience=4)
    resumed.load_state_dict(early_stopping.state_dict())
    assert not resumed.should_stop(0.5)
    assert resumed.should_stop(0.5)


@pytest.mark.system
@pytest.mark.parametrize("name", TRAININGS)
def test_it_goes_on_in_the_middle_of_an_epoch_in_either_language(name: str, tmp_path: Path) -> None:
    in_python, in_cpp, options = TRAININGS[name]
    whole = tmp_path / "whole"
    train(in_python, *options, "--output", whole)
    assert [row["step"] for row in rows(whole)] == [1, 2, 3, 3, 4, 5, 6, 6]
    for first, second in ((in_python, in_cpp), (in_cpp, in_python)):
        parts = tmp_path / first.name
        train(first, *options, "--output", parts, "--stop-at", "2")
        assert len(rows(parts)) == 2
        train(second, *options, "--output", parts)
        assert is_close(rows(parts), rows(whole)), f"{rows(parts)}\n{rows(whole)}"


@pytest.mark.system
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_resnet_goes_on_with_the_same_bits(language: int, tmp_path: Path) -> None:
    program, options = TRAININGS["resnet"][language], TRAININGS["resnet"][2]
    few = [*options, "--epochs", "1", "--optimizer", "lars", "--schedule", "polynomial"]
    few += ["--precision", "bf16"]
    train(program, *few, "--output", tmp_path / "whole")
    train(program, *few, "--output", tmp_path / "parts", "--stop-at", "1")
    train(program, *few, "--output", tmp_path / "parts")
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


@pytest.mark.system
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_resnet_trains_in_float16(language: int, tmp_path: Path) -> None:
    program, options = TRAININGS["resnet"][language], TRAININGS["resnet"][2]
    few = [*options, "--precision", "fp16", "--loss-scale", "static", "--stop-at", "1"]
    train(program, *few, "--output", tmp_path)
    assert rows(tmp_path)[0]["loss"] == pytest.approx(2.09, abs=0.05)


@pytest.mark.system
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_unet_has_the_same_losses_on_any_number_of_ranks(language: int, tmp_path: Path) -> None:
    program, options = TRAININGS["unet"][language], TRAININGS["unet"][2]
    for ranks in (1, 2):
        train(program, *options, "--output", tmp_path / f"{ranks}", "--stop-at", "2", ranks=ranks)
    assert is_close(rows(tmp_path / "2"), rows(tmp_path / "1"))


@pytest.mark.system
@pytest.mark.parametrize("language", [0, 1], ids=["python", "cpp"])
def test_a_training_that_is_told_to_end_saves_first(language: int, tmp_path: Path) -> None:
    program, options = TRAININGS["unet"][language], TRAININGS["unet"][2]
    endless = [*options, "--shapes", "1000000", "--output", tmp_path]  # no epoch ends
    with run_command.start("-n", "2", program, *endless) as started:
        assert started.stdout
        while "step 2:" not in started.stdout.readline():
            assert started.poll() is None
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=run_command.DEADLINE_S)
    before = rows(tmp_path)
    last = int(before[-1]["step"])
    assert [each.name for each in (tmp_path / "checkpoints").glob("step-*")] == [f"step-{last:08}"]
    printed = train(program, *endless, "--stop-at", f"{last + 1}")
    assert re.findall(r"step (\d+):", printed) == [f"{last + 1}"]
    assert rows(tmp_path)[:-1] == before


@pytest.mark.system
def test_workers_outlive_sigterm_of_others_and_end_with_their_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import subprocess, sys
sys.path.insert(0, {str(PYTHON)!r})
from loader_workers import outlive_preemption
from torch.utils.data import DataLoader

batches = iter(DataLoader(range(64), num_workers=1, worker_init_fn=outlive_preemption))
next(batches)  # the worker has begun
subprocess.run(["kill", "-TERM", str(batches._workers[0].pid)], check=True)
assert len([*zip(range(40), batches)]) == 40
raise RuntimeError("a step failed")
"""
    )
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "a step failed" in done.stderr.splitlines()[-1]


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", printed)]


@pytest.mark.system
def test_a_script_has_the_same_losses_before_and_after() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [warm_python.executable(), *launcher, str(MIGRATE / "before.py")],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    before, after = losses(done.stdout), losses(train(MIGRATE / "after.py"))
    assert len(before) == 3
    assert before[2] < 0.5 * before[0]
    # float16 rounds what gloo and we sum in other orders.
    assert after == pytest.approx(before, rel=1e-2)


def test_the_page_has_all_lines_that_differ_between_before_and_after() -> None:
    before, after = (
        (MIGRATE / f"{name}.py").read_text().partition('"""\n\n')[2].splitlines()
        for name in ("before", "after")
    )
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    changes = "\n".join(line for line in lines if not line.startswith("@@"))
    page = (REPOSITORY / "docs" / "examples.md").read_text()
    assert f"```diff\n{changes}\n```" in page
