# SPDX-License-Identifier: Apache-2.0
"""Commits that outlive the processes of a host: for torchrun, which starts all ranks again.

The first rank of each host writes its commits to a file in shared memory (/dev/shm), in a folder
named after torchrun's agent, which lives on. Ranks that start again take the newest that a host
has. A host that is lost takes its file with it; the others have the same. The file goes with the
last rank that ends with status 0, or with the next job after an agent that was killed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import torch

from farandole import _C, distributed
from farandole.elastic.broadcasting import broadcast_object
from farandole.elastic.state import State
from farandole.elastic_meeting import is_elastic, standing
from farandole.process_stat import stat_fields
from farandole.torch_names import all_gather_object

_FOLDERS = Path("/dev/shm")
_COUNT_BYTES = 8
_logger = logging.getLogger("farandole")


class KeptCommits:
    """The file of this host. Used by one thread of each rank."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        self._folder, self._local_rank = folder, local_rank
        self._is_told = False

    def write(self, state: State) -> None:
        """Replace the file by the state's newest commit, on the first rank of the host."""
        if self._local_rank != 0:
            return
        kept = state._kept()
        if kept is None:
            self._tell(f"{type(state).__name__} has nothing to keep")
            return
        data = io.BytesIO(standing.commits.to_bytes(_COUNT_BYTES, "little"))
        data.seek(0, os.SEEK_END)
        torch.save(kept, data)
        new = self._folder / "new"
        try:
            new.write_bytes(data.getbuffer())
            new.rename(self._folder / "0")
        except OSError as error:
            self._tell(f"{new}: {error.strerror}")

    def _newest(self) -> tuple[int, Path | None]:
        """Of this host: how many commits there were, and the file; 0 and None without one."""
        found: tuple[int, Path | None] = (0, None)
        for path in sorted(self._folder.glob("[0-9]*")):
            with contextlib.suppress(OSError), path.open("rb") as file:
                count = int.from_bytes(file.read(_COUNT_BYTES), "little")
                found = max(found, (count, path), key=lambda each: each[0])
        return found

    def recover(self, state: State) -> None:
        """Let the states of all ranks become the newest commit that a host has. Collective."""
        count, path = self._newest()
        counts: list[int] = [0] * distributed.world_size()
        all_gather_object(counts, count)
        if not any(counts):
            return
        root = counts.index(max(counts))
        data = path.read_bytes() if path is not None and distributed.rank() == root else b""
        data = broadcast_object(data, root)
        # Of this user's own files: they hold any objects of the program.
        kept: Any = torch.load(io.BytesIO(data[_COUNT_BYTES:]), weights_only=False)
        state._take_kept(kept)
        standing.commits = int.from_bytes(data[:_COUNT_BYTES], "little")
        if distributed.rank() == 0:
            _logger.info("elastic: goes on from commit %d of before the restart.", standing.commits)

    def end_with_this_process(self) -> None:
        """Remove the file when the last rank of this host has ended with status 0."""
        if self._local_rank != 0:
            with contextlib.suppress(OSError):
                os.link(self._folder / "0", self._folder / str(self._local_rank))
        _C.remove_after_success(str(self._folder / str(self._local_rank)), str(self._folder))

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            _logger.warning("commits do not outlive this process: %s.", why)


def of_this_job() -> KeptCommits | None:
    """Those of the torchrun that started this rank and may start it again; else None."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if is_elastic() or restarts == "0" or not _FOLDERS.is_dir():
        return None
    _sweep()
    folder = _FOLDERS
    try:
        folder /= f"{_prefix()}{_name_of(os.getppid())}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(folder):
            return None
    except OSError as error:
        _logger.warning("commits do not outlive this process: %s: %s.", folder, error.strerror)
        return None
    return KeptCommits(folder, int(os.environ.get("LOCAL_RANK", "0")))


def _prefix() -> str:
    return f"farandole-commits-{os.getuid()}-"


def _name_of(pid: int) -> str:
    """The process, which no later one has the name of: its number and when it started."""
    return f"{pid}-{stat_fields(pid)[19]}"


def _is_ours(folder: Path) -> bool:
    """Whether it is there, and this user's."""
    try:
        status = folder.lstat()
    except FileNotFoundError:  # another rank has swept it
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _sweep() -> None:
    """Removes what agents have left that are gone."""
    for folder in _FOLDERS.glob(f"{_prefix()}*"):
        name = folder.name.removeprefix(_prefix())
        try:
            is_gone = _name_of(int(name.partition("-")[0])) != name
        except (OSError, ValueError):
            is_gone = True
        if is_gone and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)
