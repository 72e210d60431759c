# SPDX-License-Identifier: Apache-2.0
"""examples/cmake_project builds against the installed package and trains as Python does."""

from pathlib import Path

import pytest

import warm_python
from cmake_projects import BUILD_DEADLINE_S, RUN_DEADLINE_S, build, run_ranks

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = EXAMPLES / "cmake_project"
QUICKSTART = EXAMPLES / "quickstart" / "train.py"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cmake_project")
    build(PROJECT, folder)
    return folder / "train"


@pytest.mark.timeout(BUILD_DEADLINE_S + 2 * RUN_DEADLINE_S)
@pytest.mark.parametrize("world_size", [1, 2])
def test_cpp_and_python_train_the_same_model_to_equal_bits(program: Path, world_size: int) -> None:
    cpp = run_ranks([program], world_size)
    python = run_ranks([warm_python.executable(), QUICKSTART], world_size)
    assert cpp == python
    assert [text.partition(":")[0] for text in cpp] == [
        f"rank {rank} of {world_size}" for rank in range(world_size)
    ]
