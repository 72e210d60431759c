# SPDX-License-Identifier: Apache-2.0
"""A command that ends at a limit, with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 3.0  # from SIGTERM, on which torchrun ends its ranks, to SIGKILL


@dataclass(frozen=True)
class Done:
    code: int | None  # None: killed at the limit
    output: str
    seconds: float

    @property
    def reason(self) -> str:
        """Why it has failed; empty if it has not."""
        if self.code == 0:
            return ""
        how = f"ended with exit code {self.code}"
        if self.code is None:
            how = f"was killed after {self.seconds:.0f} s: it had not ended"
        return f"{self.output}\n{how}"


def run(
    command: Sequence[str],
    limit_s: float,
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> Done:
    """Runs it with its output in `log`. KeyboardInterrupt ends it too."""
    begin = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    return Done(code, log.read_text(errors="replace"), time.monotonic() - begin)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills its descendants, also those in sessions of their own, as ranks of torchrun are."""
    family = descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid, start in family:
        if start_of(pid) == start:
            os.kill(pid, signal.SIGKILL)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants(root: int) -> list[tuple[int, str]]:
    """Pids and when each started, which tells it from a later one with that pid."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_of(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return [(pid, start_of(pid)) for pid in found]


def start_of(pid: int) -> str:
    """In ticks since the kernel's start; empty if there is no such process."""
    fields = stat_of(pid)
    return fields[19] if fields else ""


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/pid/stat behind the name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
