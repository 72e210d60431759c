# SPDX-License-Identifier: Apache-2.0
"""init() to shutdown(), who the ranks are, and what this build has."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import farandole
import torch
import torch.distributed as dist
from farandole import _C
from farandole.errors import NotSupported, sentences
from farandole.horovod import build
from farandole.named import NamedCollectives, Settings
from farandole.named.objects import all_gather_object

from horovod.common import world as state
from horovod.common.exceptions import as_horovod
from horovod.common.process_sets import (
    ProcessSet,
    _ranks_of_communicator,
    add_process_set,
    global_process_set,
)
from horovod.common.world import World, settings_of_environment, world


def init(
    comm: Iterable[int] | Any = None, process_sets: Iterable[ProcessSet] | str | None = None
) -> None:
    """Meet the other ranks, which a launcher started; without one this process is the only rank.

    Uses torch's default group where there is one, and makes it otherwise. Does nothing if it was
    called already.

    Raises:
        NotSupported: ``comm`` has some of the ranks alone.
        HorovodInternalError: a rank did not arrive.
    """
    if state.current is not None:
        return
    _refuse_unknown_parts()
    settings = settings_of_environment()
    with as_horovod():
        made = not dist.is_initialized()
        if made:
            farandole.init_process_group()
        try:
            state.current = _meet(made, settings)
        except BaseException:
            if made:
                farandole.destroy()
            raise
        try:
            _check_communicator(comm)
            for each in [] if isinstance(process_sets, str) else process_sets or []:
                add_process_set(each)
        except BaseException:
            shutdown()
            raise
    atexit.register(shutdown)


def shutdown() -> None:
    """End what init() made, here alone; operations that other ranks wait for fail."""
    if state.current is None:
        return
    old, state.current = state.current, None
    for named in old.named.values():
        named.close()
    for each in old.process_sets.values():
        if each is not global_process_set:
            each.process_set_id = None
    if old.made_group and dist.is_initialized():
        farandole.destroy()
    atexit.unregister(shutdown)


def _meet(made: bool, settings: Settings) -> World:
    named = NamedCollectives(settings=settings)
    backend = _C.ProcessGroupFarandole.of(named.group)
    places = all_gather_object(named, (backend.host, backend.local_rank), "places")
    sizes = Counter(host for host, _ in places)
    peers = [host for host, local_rank in places if local_rank == backend.local_rank]
    global_process_set.ranks = list(range(named.world_size))
    return World(
        made_group=made,
        rank=named.rank,
        size=named.world_size,
        local_rank=backend.local_rank,
        local_size=sizes[backend.host],
        cross_rank=peers.index(backend.host),
        cross_size=len(peers),
        is_homogeneous=len(set(sizes.values())) == 1,
        named={0: named},
        process_sets={0: global_process_set},
    )


def _check_communicator(comm: Iterable[int] | Any) -> None:
    if comm is None:
        return
    ranks = _ranks_of_communicator(comm) if hasattr(comm, "Get_group") else list(comm)
    if ranks and sorted(ranks) != list(range(size())):
        raise NotSupported(
            sentences(
                "horovod-comm",
                f"hvd.init() got a comm of the ranks {ranks} of {size()}.",
                "here all ranks that the launcher started take part.",
                "call hvd.init(), and pass hvd.add_process_set(ranks) to operations.",
            )
        )


def _refuse_unknown_parts() -> None:
    for variable in ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE"):
        if os.environ.get(variable, "0") not in ("", "0", "DYNAMIC"):
            raise NotSupported(
                sentences(
                    "horovod-variable-missing",
                    f"{variable} is set.",
                    "Farandole does not write Horovod's timeline, and has nothing to tune.",
                    "unset it; farandole.profiler records a run.",
                )
            )


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not."""
    return state.current is not None


def rank() -> int:
    """This rank."""
    return world().rank


def size() -> int:
    """How many ranks there are."""
    return world().size


def local_rank() -> int:
    """This rank among those on its host."""
    return world().local_rank


def local_size() -> int:
    """How many ranks are on this host."""
    return world().local_size


def cross_rank() -> int:
    """This rank's host among those that have a rank with this local rank."""
    return world().cross_rank


def cross_size() -> int:
    """How many hosts have a rank with this local rank."""
    return world().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many ranks."""
    return world().is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Refuse.

    Raises:
        NotSupported: farandole.profiler records runs.
    """
    del file_path, mark_cycles
    _refuse_timeline("start_timeline")


def stop_timeline() -> NoReturn:
    """Refuse, as start_timeline()."""
    _refuse_timeline("stop_timeline")


def _refuse_timeline(function: str) -> NoReturn:
    raise NotSupported(
        sentences(
            "horovod-timeline",
            f"hvd.{function}() was called.",
            "Farandole does not write Horovod's timeline.",
            "record the run with farandole.profiler, and read it with `farandole report`.",
        )
    )


def mpi_threads_supported() -> bool:
    """Whether MPI is in use and lets several threads call it."""
    return mpi_enabled()


def mpi_enabled() -> bool:
    """Whether operations travel through MPI: FARANDOLE_BACKEND=mpi."""
    world()
    return os.environ.get("FARANDOLE_BACKEND") == "mpi"


def mpi_built() -> bool:
    """Whether this build has the backend of MPI."""
    return build.has_backend("mpi")


def gloo_enabled() -> bool:
    """No: Farandole takes the place of gloo."""
    return False


def gloo_built() -> bool:
    """No: Farandole takes the place of gloo."""
    return False


def nccl_built() -> int:
    """The version of NCCL that torch has, if this build can use it; else 0."""
    return build.nccl_version()


def ddl_built() -> bool:
    """No."""
    return False


def ccl_built() -> bool:
    """No."""
    return False


def cuda_built() -> bool:
    """Whether this build serves tensors on CUDA devices, and torch does."""
    return build.has_backend("nccl") and torch.version.cuda is not None


def rocm_built() -> bool:
    """No."""
    return False
