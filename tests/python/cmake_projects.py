# SPDX-License-Identifier: Apache-2.0
"""Builds CMake projects of users against the installed package, and runs their programs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import warm_python

BUILD_DEADLINE_S = 300
RUN_DEADLINE_S = 60


def configure(project: Path, folder: Path) -> None:
    """Prepares to build `project` in `folder` against the package that this Python imports."""
    asking = [warm_python.executable(), "-m", "farandole", "--cmake-dir"]
    package = output_of(*asking, deadline_s=60).strip()
    options = [f"-Dfarandole_DIR={package}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]  # compiles sooner
    output_of("cmake", "-S", project, "-B", folder, *options, deadline_s=60)


def build(project: Path, folder: Path) -> None:
    """Builds `project` in `folder` against the package that this Python imports."""
    configure(project, folder)
    output_of("cmake", "--build", folder, deadline_s=BUILD_DEADLINE_S)


def output_of(*command: str | Path, deadline_s: float) -> str:
    """Runs a command, the one of this virtual environment first; returns what it printed.

    Python buffers what it prints, whatever the environment says: unbuffered, print() writes the end
    of a line apart, and lines of two ranks mix.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = ["env", "-u", "PYTHONUNBUFFERED", f"PATH={path}"]
    done = subprocess.run(
        [*environment, *command], capture_output=True, text=True, timeout=deadline_s
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(command: list[str | Path], world_size: int) -> list[str]:
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
