# SPDX-License-Identifier: Apache-2.0
"""Which host this is, and which of its ranks speaks for it."""

from __future__ import annotations

import torch.distributed as dist

from farandole import _C


def number_on_first_rank() -> int | None:
    """Number of this host, from 1, on its local rank 0; None on the others.

    Hosts are counted by their first ranks in the default group. Without such a group, or if another
    backend serves it, the launcher's variables count, as if all hosts had equally many ranks, one
    host's after another's.
    """
    world = dist.group.WORLD
    backend = None if world is None else _C.ProcessGroupFarandole.of(world)
    if backend is not None:
        return backend.host + 1 if backend.local_rank == 0 else None
    launch = _C.find_launch()
    return launch.rank // launch.local_world_size + 1 if launch.local_rank == 0 else None
