# SPDX-License-Identifier: Apache-2.0
"""torch's variables for ranks that mpirun or srun started, as SMDDP's second version sets them."""

from __future__ import annotations

import os

from torch._C._distributed_c10d import Store

from farandole import _C
from farandole.mpi_meeting import meet_through_mpi
from farandole.served_store import LOOPBACK, serve_store

_KEY = "farandole/smddp/address"
_stores: list[Store] = []
"""That serve this process or others as long as it runs."""


def set_launch_variables() -> None:
    """Let ``torch.distributed.init_process_group()`` find all ranks by env://.

    Collective under mpirun and srun, where RANK is not set: the ranks tell each other a port. Under
    torchrun, and alone, it does nothing.

    Raises:
        InvalidArgument: the launcher's variables are set in part.
        TimeoutError: a rank did not arrive; the text names it.
    """
    launch = _C.find_launch()
    if "RANK" in os.environ or launch.launcher not in ("mpirun", "srun"):
        return
    met, rank, world_size = meet_through_mpi() or _C.meet(None)
    if rank == 0:
        is_here = launch.local_world_size == world_size
        host = LOOPBACK if is_here else _C.address_of_this_host()
        served = serve_store(host)
        met.set(_KEY, f"{host} {served.port}")
        _stores.append(served)
    _stores.append(met)
    address, port = met.get(_KEY).decode().split()
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(launch.local_rank),
        LOCAL_WORLD_SIZE=str(launch.local_world_size),
        MASTER_ADDR=address,
        MASTER_PORT=port,
        TORCHELASTIC_USE_AGENT_STORE="True",  # it is served already, also to rank 0
    )
