# SPDX-License-Identifier: Apache-2.0
"""Starts `farandole run` for tests, and looks at the processes of its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import warm_python

DEADLINE_S = 60.0
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "PRTE_", "SLURM_", "OMP_")


def command(*arguments: str | Path, python: str | Path | None = None) -> list[str]:
    return [str(python or warm_python.executable()), "-m", "farandole", "run", *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """Without variables of launchers; PATH has this Python's own programs, as mpirun."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    kept["PATH"] += f":{Path(sys.executable).parent}"
    return {**kept, **variables}


def run(
    *arguments: str | Path, python: str | Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs to the end.

    By default ranks of Python are started warm. Then libraries which were imported early, and which
    such a rank does not use, may print something when it ends (triton with torch 2.15).
    """
    return run_line(command(*arguments, python=python), **variables)


def run_line(line: Sequence[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs any program to the end, in the environment of a user."""
    return subprocess.run(
        line,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def script(folder: Path, text: str, name: str = "program") -> Path:
    """An executable shell script, which starts in a millisecond."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def pids_of_ranks(started: subprocess.Popen[str], ranks: int) -> list[int]:
    """Reads lines such as "[0] ready 4711" of all ranks."""
    found: list[int] = []
    assert started.stdout
    while len(found) < ranks:
        line = started.stdout.readline()
        assert line, started.stderr
        if " ready " in line:
            found.append(int(line.split()[-1]))
    return found


def wait_for_pids(file: Path, count: int) -> list[int]:
    """Waits until scripts have written so many lines to the file; the pids in it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not file.exists() or file.read_text().count("\n") < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return [int(pid) for pid in file.read_text().split()]


def wait_until_gone(pids: list[int]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline_s, f"{pids} are left"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
