# SPDX-License-Identifier: Apache-2.0
"""One writer for each folder and group of this process."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import weakref
from pathlib import Path

import torch.distributed as dist

from farandole import _C, arguments
from farandole.errors import InvalidArgument, sentences

_MOST = 4
"""Writers that are kept for a group; a program may give each checkpoint a folder of its own."""

_waits_in = 0
"""The process of multiprocessing that waits at its end."""

_logger = logging.getLogger(__name__)
_writers: dict[tuple[str, int], tuple[weakref.ref[dist.ProcessGroup], _C.CheckpointWriter]] = {}


def writer_of(call: str, path: str, process_group: dist.ProcessGroup | None) -> _C.CheckpointWriter:
    """The writer of a folder. Collective the first time, as all that it does."""
    group = arguments.group_of(call, process_group)
    for each in [key for key, (of_group, _) in _writers.items() if of_group() is None]:
        del _writers[each]
    key = (os.path.realpath(path), id(group))
    if key not in _writers:
        of_group = [each for each in _writers if each[1] == id(group)]
        if len(of_group) >= _MOST:  # the same on all ranks of the group
            _finish(of_group[0])
        writer = _C.CheckpointWriter(key[0], group)
        _check_same_path(writer, str(Path(path).absolute()), key[0])
        _wait_in_multiprocessing()
        _writers[key] = (weakref.ref(group), writer)
    return _writers[key][1]


def _check_same_path(writer: _C.CheckpointWriter, path: str, folder: str) -> None:
    """Raise on all ranks if one has another path: all write where rank 0 says. Collective.

    Links may lead to other places on other hosts.
    """
    given, resolved = writer.all_gather(path), writer.all_gather(folder)
    for rank in range(1, len(given)):
        if given[rank] != given[0] and resolved[rank] != resolved[0]:
            raise InvalidArgument(
                sentences(
                    "checkpoint-paths-differ",
                    f"rank {rank} got the path '{given[rank]}' for checkpoints, and rank 0 "
                    f"'{given[0]}'.",
                    "all ranks save into one folder, and load from it.",
                    "pass the same path on every rank: one that rank 0 has made, or that has a "
                    "time in it, is broadcast first.",
                )
            )


def _finish(key: tuple[str, int]) -> None:
    """Forget a writer when its save is done."""
    _, writer = _writers.pop(key)
    try:
        writer.wait()
    except Exception as error:
        _logger.error("%s", error)


@atexit.register
def _wait_for_all() -> None:
    """A save that is under way is finished before the process ends."""
    while _writers:
        _finish(next(iter(_writers)))


def _wait_in_multiprocessing() -> None:
    """Let that be so in processes of multiprocessing, too, which call nothing of atexit."""
    global _waits_in
    if multiprocessing.parent_process() is not None and _waits_in != os.getpid():
        multiprocessing.util.Finalize(None, _wait_for_all, exitpriority=0)
        _waits_in = os.getpid()
