# SPDX-License-Identifier: Apache-2.0
"""Which host this is, and which of its ranks speaks for it."""

from __future__ import annotations

import torch.distributed as dist

from farandole import _C, distributed
from farandole.errors import Error


def number_on_first_rank() -> int | None:
    """Number of this host, from 1, on its local rank 0; None on the others.

    It is right where hosts have equally many ranks, one host's after another's. Ranks are those of
    the default group, or of the launcher.
    """
    rank, local_rank, local_world_size = _place()
    return rank // local_world_size + 1 if local_rank == 0 else None


def _place() -> tuple[int, int, int]:
    """Rank, local rank, ranks of this host."""
    if dist.is_initialized():
        try:
            return distributed.rank(), distributed.local_rank(), distributed.local_world_size()
        except Error:  # the default group is of another backend
            pass
    launch = _C.find_launch()
    return launch.rank, launch.local_rank, launch.local_world_size
