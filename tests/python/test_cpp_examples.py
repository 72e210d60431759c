# SPDX-License-Identifier: Apache-2.0
"""examples/cpp build against the installed package and train alike on any number of ranks."""

import re
import sys
from pathlib import Path

import pytest

from cmake_projects import BUILD_DEADLINE_S, RUN_DEADLINE_S, build, output_of, run_ranks

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "examples" / "cpp"
STEPS = 120


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
    assert list(alone) == [1, 20, 40, 60, 80, 100, 120]
    assert alone[STEPS] < 0.5 * alone[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node=2", "--no-python"]
    two = losses(output_of(*launcher, *command, deadline_s=RUN_DEADLINE_S))
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
