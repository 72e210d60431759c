# SPDX-License-Identifier: Apache-2.0
"""One writer for each folder and group of this process."""

from __future__ import annotations

import atexit
import logging
import os
import weakref

import torch.distributed as dist

from farandole import _C, arguments

_MOST = 4
"""Writers that are kept for a group; a program may give each checkpoint a folder of its own."""

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
        _writers[key] = (weakref.ref(group), _C.CheckpointWriter(key[0], group))
    return _writers[key][1]


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
