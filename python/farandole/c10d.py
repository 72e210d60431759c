# SPDX-License-Identifier: Apache-2.0
"""Registers the backend "farandole" with torch.distributed; done by ``import farandole``."""

from __future__ import annotations

import atexit
from typing import Any

import torch.distributed as dist

from farandole import _C

BACKEND = "farandole"


def create_backend(
    place: Any,  # torch's DistributedBackendOptions, which has no public name
    options: _C.ProcessGroupFarandole.Options | None,
) -> _C.ProcessGroupFarandole:
    """Make this rank's part of a new group, as torch.distributed asks for it.

    Raises:
        farandole.TimeoutError: a rank of the group did not arrive; the text names it.
    """
    own = _C.ProcessGroupFarandole.Options(place.timeout)
    if options is not None and options.group_name:
        own.group_name = options.group_name
    elif place.global_ranks_in_group:  # empty for the default group
        own.group_name = place.group_id
    own.is_default = not place.global_ranks_in_group
    if place.global_ranks_in_group:  # where a death is known to the default group
        own.global_ranks_in_group = list(place.global_ranks_in_group)
    if getattr(place, "enable_reconfigure", False):
        since_2_15: Any = own
        since_2_15.enable_reconfigure = True  # its ranks come with reconfigure()
    return _C.ProcessGroupFarandole(place.store, place.group_rank, place.group_size, own)


def register(name: str = BACKEND) -> None:
    """Make ``init_process_group(name)`` work. More than once is harmless.

    Args:
        name: Another one than "farandole" is for scripts that were written for another library.
    """
    if hasattr(dist.Backend, name.upper()):
        return
    dist.Backend.register_backend(name, create_backend, extended_api=True, devices=["cpu", "cuda"])
    if name == BACKEND:
        # Before the interpreter goes: executor threads must not outlive it.
        atexit.register(_C.shut_down_all_groups)
