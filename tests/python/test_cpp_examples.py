# SPDX-License-Identifier: Apache-2.0
"""examples/cpp build against the installed package, and train as they promise."""

import re
import sys
from pathlib import Path

import pytest

from cmake_projects import BUILD_DEADLINE_S, RUN_DEADLINE_S, build, output_of, run_ranks

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "examples" / "cpp"
DISTILLATION = REPOSITORY / "examples" / "python" / "train_vit_distillation.py"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
STEPS = 60
DISTILLATION_DEADLINE_S = 180  # products in bfloat16 are slow on processors that have not got it


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was built, beside a text in English."""
    folder = tmp_path_factory.mktemp("cpp_examples")
    build(PROJECT, folder)
    pages = sorted((REPOSITORY / "docs").glob("*.md"))
    (folder / "text").write_text("".join(page.read_text() for page in pages))
    return folder


def losses(printed: str) -> dict[int, float]:
    """By step."""
    lines = re.findall(r"^step (\d+): loss (\d+\.\d{6})(?:, the last)?$", printed, re.MULTILINE)
    assert printed.endswith(", the last\n")
    return {int(step): float(loss) for step, loss in lines}


@pytest.mark.timeout(BUILD_DEADLINE_S + 3 * RUN_DEADLINE_S)
def test_char_lm_has_the_same_losses_on_any_number_of_ranks(folder: Path) -> None:
    command: list[str | Path] = [folder / "train_char_lm", folder / "text", f"{STEPS}"]
    alone = losses(run_ranks(command, 1)[0])
    assert list(alone) == [1, 20, 40, 60]
    assert alone[STEPS] < 0.7 * alone[1]
    two = losses(output_of(*LAUNCHER, "--no-python", *command, deadline_s=RUN_DEADLINE_S))
    outputs = run_ranks(command, 3)  # 16 sequences: 6, 5 and 5
    assert outputs[1:] == ["", ""]
    for several in (two, losses(outputs[0])):
        assert several[1] == pytest.approx(alone[1], rel=1e-6)
        assert several[20] == pytest.approx(alone[20], rel=1e-5)
        assert several == pytest.approx(alone, rel=1e-3)


@pytest.mark.timeout(BUILD_DEADLINE_S + RUN_DEADLINE_S)
def test_char_lm_says_how_it_is_called(folder: Path) -> None:
    with pytest.raises(AssertionError, match=r"usage: \S+ TEXT_FILE \[STEPS\]"):
        output_of(folder / "train_char_lm", deadline_s=RUN_DEADLINE_S)


def check_distillation(printed: str, world_size: int) -> dict[str, str]:
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
    accuracy = {name: float(percent) for name, percent in found.groupdict().items()}
    assert accuracy["teacher"] > 85
    assert accuracy["distilled"] > accuracy["alone"] + 3  # 8 more, at least, was seen with 6 seeds
    line = rf"^rank (\d) of {world_size}: the distilled student's parameters sum to (\S+)$"
    sums = dict(re.findall(line, printed, re.MULTILINE))
    assert sorted(sums) == [f"{rank}" for rank in range(world_size)]
    assert len(set(sums.values())) == 1
    return found.groupdict() | {"parameters": sums["0"]}


@pytest.mark.timeout(BUILD_DEADLINE_S + RUN_DEADLINE_S + 2 * DISTILLATION_DEADLINE_S)
def test_a_distilled_student_beats_the_one_alone_and_alike_in_both_languages(folder: Path) -> None:
    digits = folder / "digits.bin"
    exporting = [sys.executable, DISTILLATION, "--export", digits]
    assert output_of(*exporting, deadline_s=RUN_DEADLINE_S) == ""
    assert digits.stat().st_size == 1797 * 65
    program = folder / "train_vit_distillation"
    cpp_command = [*LAUNCHER, "--no-python", program, digits]
    cpp = output_of(*cpp_command, deadline_s=DISTILLATION_DEADLINE_S)
    python = output_of(*LAUNCHER, DISTILLATION, deadline_s=DISTILLATION_DEADLINE_S)
    assert check_distillation(cpp, 2) == check_distillation(python, 2)
