# SPDX-License-Identifier: Apache-2.0
"""examples/cmake_project builds against the installed package and trains as Python does."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = EXAMPLES / "cmake_project"
BUILD_DEADLINE_S = 300
RUN_DEADLINE_S = 60


def output_of(*command: str | Path, deadline_s: float) -> str:
    """Runs a command, the one of this virtual environment first; returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["env", f"PATH={path}", *command], capture_output=True, text=True, timeout=deadline_s
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(command: list[str], world_size: int) -> list[str]:
    """Starts a command once for each rank; all must succeed. Returns what each printed."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}"}
    shared = os.environ | place | {"WORLD_SIZE": f"{world_size}"}
    ranks = [
        subprocess.Popen(
            command,
            env=shared | {"RANK": f"{rank}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        texts = [rank.communicate(timeout=RUN_DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world_size, texts
    return [text[0] for text in texts]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built against the package that this Python imports."""
    build = tmp_path_factory.mktemp("cmake_project")
    package = output_of(sys.executable, "-m", "farandole", "--cmake-dir", deadline_s=60).strip()
    output_of(*("cmake", "-S", PROJECT, "-B", build, f"-Dfarandole_DIR={package}"), deadline_s=60)
    output_of("cmake", "--build", build, deadline_s=BUILD_DEADLINE_S)
    return build / "train"


@pytest.mark.timeout(BUILD_DEADLINE_S + 2 * RUN_DEADLINE_S)
@pytest.mark.parametrize("world_size", [1, 2])
def test_cpp_and_python_train_the_same_model_to_equal_bits(program: Path, world_size: int) -> None:
    cpp = run_ranks([str(program)], world_size)
    python = run_ranks([sys.executable, str(EXAMPLES / "quickstart" / "train.py")], world_size)
    assert cpp == python
    assert [text.partition(":")[0] for text in cpp] == [
        f"rank {rank} of {world_size}" for rank in range(world_size)
    ]
