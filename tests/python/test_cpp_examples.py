# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/cpp train as they promise."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from cmake_projects import RUN_DEADLINE_S, configure, output_of, run_ranks
from whole_matrix import of_whole_matrix

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "examples" / "cpp"
# `make build` compiles them beside the C++ tests.
PROGRAMS = REPOSITORY / os.environ.get("FARANDOLE_BUILD", "build/release") / "tests"
DISTILLATION = REPOSITORY / "examples" / "python" / "train_vit_distillation.py"
CHAR_LM = REPOSITORY / "examples" / "python" / "train_char_lm.py"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
STEPS = 120
DISTILLATION_DEADLINE_S = 240  # products in bfloat16 are slow on processors that have not got it


@pytest.fixture(scope="module")
def text() -> Path:
    """In English, and the same in all versions: losses depend on it."""
    return REPOSITORY / "LICENSE"


def test_the_project_finds_the_installed_package(tmp_path: Path) -> None:
    configure(PROJECT, tmp_path)
    targets = output_of("cmake", "--build", tmp_path, "--target", "help", deadline_s=RUN_DEADLINE_S)
    for program in PROJECT.glob("*.cpp"):
        assert re.search(rf"(?m)^\W*{program.stem}\b", targets)


def losses(printed: str) -> dict[int, float]:
    """By step."""
    where = r"\d+ letters/s, \d+:\d\d:\d\d left(?:, the last)?"
    lines = re.findall(rf"^step (\d+): loss (\d+\.\d{{6}}), {where}$", printed, re.MULTILINE)
    assert printed.endswith(", the last\n")
    return {int(step): float(loss) for step, loss in lines}


@pytest.mark.timeout(5 * RUN_DEADLINE_S)
def test_char_lm_has_the_same_losses_on_any_number_of_ranks(text: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [PROGRAMS / "train_char_lm", text, f"{STEPS}"]
    alone = losses(run_ranks(command, 1)[0])
    assert list(alone) == [1, 20, 40, 60, 80, 100, 120]
    assert alone[STEPS] < 0.5 * alone[1]
    two = losses(output_of(*LAUNCHER, "--no-python", *command, deadline_s=RUN_DEADLINE_S))
    outputs = run_ranks(command, 3)  # 16 sequences: 6, 5 and 5
    assert outputs[1:] == ["", ""]
    for several in (two, losses(outputs[0])):
        assert several[1] == pytest.approx(alone[1], rel=1e-6)
        assert several[20] == pytest.approx(alone[20], rel=1e-5)
        assert several == pytest.approx(alone, rel=1e-3)
    # Begun in Python on two ranks, on in C++ on one.
    launched: list[str | Path] = [*LAUNCHER, CHAR_LM, text, "50", tmp_path]
    begun = losses(output_of(*launched, deadline_s=RUN_DEADLINE_S))
    assert list(begun) == [1, 20, 40, 50]
    resumed = losses(run_ranks([*command, tmp_path], 1)[0])
    assert list(resumed) == [60, 80, 100, 120]
    del begun[50]
    assert begun | resumed == pytest.approx(alone, rel=1e-3)


def test_char_lm_says_how_it_is_called() -> None:
    with pytest.raises(AssertionError, match=r"usage: \S+ TEXT_FILE \[STEPS \[CHECKPOINTS\]\]"):
        output_of(PROGRAMS / "train_char_lm", deadline_s=RUN_DEADLINE_S)


def regression(printed: str) -> tuple[list[int], list[float], list[str]]:
    """Steps, losses and learning rates."""
    rows = re.findall(r"^step (\d+): loss (\d+\.\d+), next lr (\S+)$", printed, re.MULTILINE)
    return [int(row[0]) for row in rows], [float(row[1]) for row in rows], [row[2] for row in rows]


@pytest.mark.timeout(3 * RUN_DEADLINE_S)
def test_regression_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    program = PROGRAMS / "train_regression"
    steps, losses, rates = regression(run_ranks([program, tmp_path / "whole"], 1)[0])
    assert steps == list(range(1, 61))
    assert losses[-1] < 0.05 * losses[0]
    assert len(set(rates)) == 60
    at = 0
    for until, world_size in [(16, 2), (23, 1), (60, 4)]:  # 16 is the end of an epoch
        printed = run_ranks([program, tmp_path / "parts", f"{until}"], world_size)[0]
        found = regression(printed)
        assert found[0] == steps[at:until]
        assert found[1] == pytest.approx(losses[at:until], abs=2e-4)
        assert found[2] == rates[at:until]
        at = until


def distillation(printed: str, world_size: int) -> dict[str, str]:
    """Checks what the program printed; returns all but times, as text."""
    assert re.search(r"(?m)^ms of a step, mean +data +forward +backward +optimizer$", printed)
    for name in ("teacher", "student alone", "distilled student"):
        row = re.search(rf"(?m)^{name} +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", printed)
        assert row, printed
        assert all(float(milliseconds) > 0 for milliseconds in row.groups())
    found = re.search(
        r"^accuracy on 500 test images: teacher (?P<teacher>[\d.]+)%, student alone "
        r"(?P<alone>[\d.]+)%, distilled student (?P<distilled>[\d.]+)%$",
        printed,
        re.MULTILINE,
    )
    assert found, printed
    # Not by lines: print() writes the end of a line apart, and another rank may come in between.
    line = rf"rank (\d) of {world_size}: the distilled student's parameters sum to (-?[\d.]+)"
    sums = dict(re.findall(line, printed))
    assert sorted(sums) == [f"{rank}" for rank in range(world_size)]
    assert len(set(sums.values())) == 1
    return found.groupdict() | {"parameters": sums["0"]}


@pytest.fixture(scope="module")
def distil(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command of the program in C++."""
    digits = tmp_path_factory.mktemp("digits") / "digits.bin"
    exporting = [sys.executable, DISTILLATION, "--export", digits]
    assert output_of(*exporting, deadline_s=RUN_DEADLINE_S) == ""
    assert digits.stat().st_size == 1797 * 65
    return [*LAUNCHER, "--no-python", PROGRAMS / "train_vit_distillation", digits]


@pytest.mark.timeout(RUN_DEADLINE_S + 2 * DISTILLATION_DEADLINE_S)
def test_distillation_is_alike_in_both_languages(distil: list[str | Path]) -> None:
    # torchrun starts Python unbuffered, so that lines of two ranks may mix; this way they do not.
    python = [*LAUNCHER, "--no-python", sys.executable, DISTILLATION]
    printed = [
        output_of(*command, "1", "20", deadline_s=DISTILLATION_DEADLINE_S)
        for command in (distil, python)
    ]
    assert distillation(printed[0], 2) == distillation(printed[1], 2)


@pytest.mark.timeout(RUN_DEADLINE_S + 2 * DISTILLATION_DEADLINE_S)
@of_whole_matrix
def test_distillation_goes_on_in_the_other_language(
    distil: list[str | Path], tmp_path: Path
) -> None:
    in_python = [*LAUNCHER, "--no-python", sys.executable, DISTILLATION, "1", "60"]
    in_python += ["--checkpoints", tmp_path]
    whole = output_of(*in_python, deadline_s=DISTILLATION_DEADLINE_S)
    # As if it had been ended in the steps of the last student.
    shutil.rmtree(tmp_path / "distilled" / "step-00000060")
    (tmp_path / "distilled" / "latest").write_text("step-00000050\n")
    resumed = output_of(*distil, "1", "60", tmp_path, deadline_s=DISTILLATION_DEADLINE_S)
    times = re.findall(r"(?m)^(?:teacher|student alone) .* ([\d.]+)$", resumed)
    assert times == ["0.000", "0.000"]
    results = r"accuracy .*%|parameters sum to -?[\d.]+"  # ranks print in any order
    assert sorted(re.findall(results, resumed)) == sorted(re.findall(results, whole))


@pytest.mark.timeout(RUN_DEADLINE_S + DISTILLATION_DEADLINE_S)
@of_whole_matrix
def test_a_distilled_student_beats_the_one_alone(distil: list[str | Path]) -> None:
    printed = output_of(*distil, "0", "140", deadline_s=DISTILLATION_DEADLINE_S)
    result = distillation(printed, 2)
    assert float(result["teacher"]) > 85
    assert float(result["distilled"]) > float(result["alone"]) + 3  # 9 more were seen
