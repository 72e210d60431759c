# SPDX-License-Identifier: Apache-2.0
"""init() to shutdown(), who the ranks are, and what this build has."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import farandole
import torch
import torch.distributed as dist
from farandole import _C, elastic_meeting
from farandole.errors import MismatchError, NotSupported, sentences
from farandole.horovod import build, variables
from farandole.logs import LOGGER
from farandole.named import Settings
from farandole.named.objects import all_gather_object
from farandole.named.timeline import Timeline

from horovod.common import world as state
from horovod.common.collectives import Collectives
from horovod.common.exceptions import as_horovod
from horovod.common.process_sets import (
    ProcessSet,
    _ranks_of_communicator,
    add_process_set,
    global_process_set,
)
from horovod.common.timeline import record
from horovod.common.world import World, world

_VARIABLE_OF = {
    "fusion_bytes": "HOROVOD_FUSION_THRESHOLD",
    "capacity": "HOROVOD_CACHE_CAPACITY",
}


def init(
    comm: Iterable[int] | Any = None, process_sets: Iterable[ProcessSet] | str | None = None
) -> None:
    """Meet the other ranks, which a launcher started; without one this process is the only rank.

    Uses torch's default group where there is one, and makes it otherwise. Does nothing if it was
    called already.

    Raises:
        NotSupported: ``comm`` has some of the ranks alone.
        InvalidArgument: a variable of Horovod has a wrong value.
        SystemError: the file of HOROVOD_TIMELINE cannot be written.
        HorovodInternalError: a rank did not arrive.
    """
    if state.current is not None:
        return
    settings = _read_variables()
    # Under an elastic launcher ranks have no numbers before they meet.
    timeline = None if elastic_meeting.is_elastic() else _start_timeline(_rank_to_be())
    try:
        with as_horovod():
            elastic_meeting.until_formed(lambda: _begin(comm, process_sets, settings, timeline))
    except BaseException:
        if timeline is not None:
            timeline.close()
        raise
    atexit.register(shutdown)


def shutdown() -> None:
    """End what init() made, here alone; operations that other ranks wait for fail."""
    if state.current is None:
        return
    old, state.current = state.current, None
    for named in old.named.values():
        named.close()
    if old.timeline is not None:
        old.timeline.close()
    for each in old.process_sets.values():
        if each is not global_process_set:
            each.process_set_id = None
    if old.made_group and dist.is_initialized():
        farandole.destroy()
    atexit.unregister(shutdown)


def _read_variables() -> Settings:
    """What variables ask for, before ranks meet."""
    given = os.environ
    settings = variables.settings_of(given)
    variables.start_timeout_of(given)
    variables.take_over(given)
    if given.get("HOROVOD_THREAD_AFFINITY"):
        settings = dataclasses.replace(settings, core=variables.core_of(given, *_local_place()))
    return settings


def _start_timeline(rank: int) -> Timeline | None:
    """What HOROVOD_TIMELINE asks for; of rank 0, which also tells what variables do not do."""
    given = os.environ
    if rank != 0:
        return None
    if text := variables.told(given):
        _warn_once(text)
    path = given.get("HOROVOD_TIMELINE", "")
    if path in ("", "DYNAMIC"):
        return None
    return Timeline(path, variables.is_on(given, "TIMELINE_MARK_CYCLES"))


def _rank_to_be() -> int:
    return dist.get_rank() if dist.is_initialized() else _C.find_launch().rank


def _local_place() -> tuple[int, int]:
    """This rank's number on its host, and how many are there."""
    if dist.is_initialized():
        return farandole.local_rank(), farandole.local_world_size()
    launch = _C.find_launch()
    return launch.local_rank, launch.local_world_size


@functools.cache
def _warn_once(text: str) -> None:
    LOGGER.warning("variables: %s. docs/horovod.md has them all.", text)


def _begin(
    comm: Iterable[int] | Any,
    process_sets: Iterable[ProcessSet] | str | None,
    settings: Settings,
    timeline: Timeline | None,
) -> None:
    made = not dist.is_initialized()
    try:
        if made:
            _make_group()
        state.current = _meet(made, settings)
        if elastic_meeting.is_elastic():
            timeline = _start_timeline(state.current.rank)
    except BaseException:
        state.current = None
        if made and dist.is_initialized():
            farandole.destroy()
        raise
    asks = os.environ.get("HOROVOD_TIMELINE", "") not in ("", "DYNAMIC")
    record(state.current, timeline, tells_times=asks)
    try:
        _check_communicator(comm)
        for each in [] if isinstance(process_sets, str) else process_sets or []:
            add_process_set(each)
    except BaseException:
        shutdown()
        raise


def _make_group() -> None:
    """HOROVOD_START_TIMEOUT is the patience of the start alone."""
    patience_s = variables.start_timeout_of(os.environ)
    group = farandole.init_process_group(timeout=patience_s)
    if patience_s is not None:
        backend: Any = _C.ProcessGroupFarandole.of(group)
        backend.set_timeout(_C.Config.from_environment().timeout)


def _meet(made: bool, settings: Settings) -> World:
    if state.everyone is None:
        state.everyone = Collectives(settings=settings)
    else:
        state.everyone.reopen(settings)
    named = state.everyone
    backend = _C.ProcessGroupFarandole.of(named.group)
    told = all_gather_object(named, (backend.host, backend.local_rank, settings), "places")
    try:
        _check_settings([each for *_, each in told])
    except MismatchError:
        named.close()
        raise
    places = [(host, local_rank) for host, local_rank, _ in told]
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
        settings=settings,
    )


def _check_settings(settings: Sequence[Settings]) -> None:
    """What the ranks do together depends on these, which must be the same on all of them."""
    for name in ("fusion_bytes", "capacity"):
        values = [getattr(each, name) for each in settings]
        if len(set(values)) > 1:
            raise MismatchError(
                sentences(
                    "horovod-settings",
                    f"hvd.init() found {_VARIABLE_OF[name]} to differ: {values}, by rank.",
                    "it decides which tensors travel together, on all ranks.",
                    "set the variable to one value on all ranks, or unset it.",
                )
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
