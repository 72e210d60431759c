# SPDX-License-Identifier: Apache-2.0
"""How the ranks of mpirun find each other on several hosts: through mpi4py, where it is."""

from __future__ import annotations

import importlib.util
import logging

from torch._C._distributed_c10d import Store, TCPStore

from farandole import _C
from farandole.served_store import serve_store

_logger = logging.getLogger(__name__)


def meet_through_mpi() -> tuple[Store, int, int] | None:
    """Tell all ranks of mpirun the address of a store that rank 0 opens. Collective.

    Returns:
        The store, this rank and how many there are; None if no mpirun started this process, if the
        environment tells where ranks meet, or if mpi4py is not installed.
    """
    launch = _C.find_launch()
    if launch.launcher != "mpirun" or launch.has_meeting_place:
        return None
    if importlib.util.find_spec("mpi4py") is None:
        return None
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (launch.rank, launch.world_size):
        return None  # an MPI of another kind than mpirun's
    store = None
    address = ("", 0)
    if world.rank == 0:
        host = _C.address_of_this_host()
        store = serve_store(host)
        address = (host, store.port)
    host, port = world.bcast(address)
    if store is None:
        store = TCPStore(host, port, world.size, is_master=False)
    else:
        _logger.info(
            "rank 0 of %d, started by mpirun; the ranks meet at %s:%d, which mpi4py told them.",
            world.size,
            host,
            port,
        )
    return store, world.rank, world.size
