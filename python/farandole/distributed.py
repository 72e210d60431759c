# SPDX-License-Identifier: Apache-2.0
"""The rank and world-size API: how groups are made and ended, and who is in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from farandole import _C, arguments
from farandole.arguments import Timeout, default_group
from farandole.c10d import BACKEND
from farandole.called import collective
from farandole.elastic_meeting import form, is_elastic
from farandole.errors import InvalidArgument, NotSupported, PeerFailure, SystemError, sentences
from farandole.mpi_meeting import meet_through_mpi

Group: TypeAlias = dist.ProcessGroup
_RETURN_S = 10.0
"""For so long after a store is lost, ranks look for rank 0's next one."""


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: _C.ProcessGroupFarandole.Options | None = None,
    device_id: torch.device | int | None = None,
) -> Group:
    """Make the default group, with the backend farandole for tensors on CPU and CUDA.

    It is torch.distributed's default group; if there is one already and no argument says where
    ranks meet, that one is returned. Without such arguments the ranks find each other through the
    variables of torchrun, mpirun (OpenMPI, MPICH, Intel MPI, MVAPICH) or srun; without those this
    process is rank 0 of 1. One line in the log says which. Under an elastic launcher
    (farandole.elastic) the ranks are those that it names then.

    Args:
        backend: "farandole" or None.
        init_method: "tcp://host:port", "file:///path" or "env://".
        timeout: How long each collective waits for a late rank, as a timedelta or in seconds;
            FARANDOLE_TIMEOUT_S if None.
        world_size: How many processes there are, with ``store`` or ``init_method``.
        rank: Of this process, with ``store`` or ``init_method``.
        store: Where the processes meet, in place of ``init_method``.
        group_name: As torch takes it.
        pg_options: ProcessGroupFarandole's, or None.
        device_id: As torch takes it; the CPU has nothing to bind.

    Raises:
        InvalidArgument: arguments or variables are incomplete, or do not tell where ranks meet.
        TimeoutError: a rank did not arrive; the text names it.
    """
    name = "init_process_group"
    _check_backend(name, backend)
    _check_types(init_method, store, group_name, pg_options, device_id)
    rank = arguments.int_of(name, "rank", rank)
    world_size = arguments.int_of(name, "world_size", world_size)
    limit = arguments.timeout_of(name, timeout)
    if init_method in ("", "env://") and rank < 0 and world_size < 0 and store is None:
        init_method = None
    plain = init_method is None and rank < 0 and world_size < 0 and store is None
    if dist.is_initialized():
        if plain:
            return default_group()
        raise InvalidArgument(
            sentences(
                "initialized-twice",
                "init_process_group() was called twice in this process.",
                "a default group exists, and the arguments ask for a different one.",
                "call destroy() first, or call it without arguments to get the existing group.",
            )
        )
    books = dist.distributed_c10d._world
    made = books.group_count

    def begin(
        store: Store | None, rank: int, world_size: int, timeout: timedelta | None = limit
    ) -> Group:
        try:
            dist.init_process_group(
                BACKEND,
                init_method=init_method,
                rank=rank,
                world_size=world_size,
                store=store,
                timeout=timeout,
                group_name=group_name,
                pg_options=pg_options,
                device_id=None if _is_cpu(device_id) else device_id,
            )
        except BaseException:
            # torch counts this try, and ranks meet below the count: another rank may be at its
            # first.
            books.group_count = made
            raise
        return default_group()

    if plain and is_elastic():
        group = form(begin)
        formed: Any = _C.ProcessGroupFarandole.of(group)
        formed.set_timeout(limit or _C.Config.from_environment().timeout)
        return group
    if plain and not _is_restarted_by_torch():
        return _meet_and(begin, limit)
    if not plain:
        _check_place(init_method, rank, world_size, store)
    return begin(store, rank, world_size)


def _meet_and(begin: Callable[[Store, int, int], Group], limit: timedelta | None) -> Group:
    """Form the group where the launcher says, as C++ does (src/process_group/init.cpp).

    Where that is a port of rank 0, a rank that comes back for another group before rank 0 does
    finds the store of the group before, which rank 0 is about to close. It then meets again.
    """
    deadline = None
    wait = limit
    while True:
        store, rank, world_size = meet_through_mpi() or _C.meet(wait)
        try:
            return begin(store, rank, world_size)
        except SystemError:
            now = time.monotonic()
            deadline = deadline or now + _RETURN_S
            if rank == 0 or now >= deadline:
                raise
            wait = timedelta(seconds=deadline - now, milliseconds=1)


def _is_restarted_by_torch() -> bool:
    """Whether an agent of torchrun serves the store: torch knows better where restarts meet."""
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return served and _C.find_launch().launcher == "torchrun"


def _is_cpu(device_id: torch.device | int | None) -> bool:
    return isinstance(device_id, torch.device) and device_id.type == "cpu"


def _check_backend(function: str, backend: object) -> None:
    if backend is None or (isinstance(backend, str) and backend.lower() == BACKEND):
        return
    raise InvalidArgument(
        sentences(
            "not-our-backend",
            f"{function}() got the backend {backend!r}.",
            f'this function makes groups of Farandole\'s own backend, "{BACKEND}".',
            f"leave the argument out, or call torch.distributed.{function}() for other backends "
            '(also for "cpu:farandole,cuda:nccl"); pass an address as '
            'init_method="tcp://...".',
        )
    )


def _check_types(
    init_method: object, store: object, group_name: object, options: object, device: object
) -> None:
    name = "init_process_group"
    if init_method is not None and not isinstance(init_method, str):
        raise arguments.wrong(name, "init_method", init_method, "a str or None")
    if store is not None and not isinstance(store, Store):
        raise arguments.wrong(name, "store", store, "a torch.distributed.Store or None")
    if not isinstance(group_name, str):
        raise arguments.wrong(name, "group_name", group_name, "a str")
    _check_options(name, options)
    if device is not None and not isinstance(device, (torch.device, int)):
        raise arguments.wrong(name, "device_id", device, "a torch.device, an int or None")


def _check_options(function: str, options: object) -> None:
    if options is None or isinstance(options, _C.ProcessGroupFarandole.Options):
        return
    takes = "ProcessGroupFarandole.Options or None"
    raise arguments.wrong(function, "pg_options", options, takes)


def _check_place(init_method: str | None, rank: int, world_size: int, store: Store | None) -> None:
    """Check that arguments which say where ranks meet are complete, as C++ does."""
    if store is not None and init_method:
        raise InvalidArgument(
            sentences(
                "store-and-init-method",
                f"init_process_group() got both a store and init_method '{init_method}'.",
                "each of them tells the ranks where to meet, and there can be only one.",
                "pass one of them.",
            )
        )
    by_variables = store is None and init_method in (None, "", "env://")
    if by_variables and rank >= 0 and world_size > rank and "MASTER_ADDR" not in os.environ:
        raise InvalidArgument(
            sentences(
                "no-place-to-meet",
                f"init_process_group() got rank {rank} and world_size {world_size}, and no place "
                "to meet.",
                "without init_method and store, ranks meet at MASTER_ADDR, which is not set.",
                'pass init_method="tcp://<host of rank 0>:<port>", or start the script with '
                "torchrun.",
            )
        )
    if not by_variables and not 0 <= rank < world_size and "?" not in (init_method or ""):
        raise InvalidArgument(
            sentences(
                "rank-and-world-size",
                f"init_process_group() got rank {rank} and world_size {world_size}.",
                "with a store, tcp:// or file://, both must be given, and ranks count from 0.",
                "pass rank and world_size, or start the script with torchrun.",
            )
        )
    if init_method and not init_method.startswith(("tcp://", "file://", "env://")):
        raise InvalidArgument(
            sentences(
                "init-method",
                f"init_process_group() cannot use init_method '{init_method}'.",
                "it takes tcp://host:port, file:///path and env://.",
                "use one of these forms, or leave it out under torchrun.",
            )
        )


def is_initialized() -> bool:
    """Whether there is a default group."""
    return dist.is_initialized()


def is_launched() -> bool:
    """Whether a launcher started this process as a rank: `farandole run`, torchrun, mpirun, srun.

    Raises:
        InvalidArgument: a launcher's variables are set in part.
    """
    return _C.find_launch().launcher != "alone"


@collective
def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Timeout | None = None,
    backend: str | None = None,
    pg_options: _C.ProcessGroupFarandole.Options | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
) -> Group | None:
    """Make a group of some ranks of the default group; every rank of that calls it.

    Args:
        ranks: Its ranks, counted in the default group; all if None.
        timeout: As in init_process_group().
        backend: "farandole" or None.
        pg_options: ProcessGroupFarandole's, or None.
        use_local_synchronization: Whether only the ranks of the new group call it, as torch has it.
        group_desc: As torch takes it.

    Returns:
        The group, or None on a rank that is not in it.

    Raises:
        InvalidArgument: ``ranks`` make no group of the default one's.
    """
    _check_backend("new_group", backend)
    _check_options("new_group", pg_options)
    count = default_group().size()
    listed = None if ranks is None else arguments.ints_of("new_group", "ranks", ranks)
    if listed is not None and (
        not listed or len(set(listed)) < len(listed) or min(listed) < 0 or max(listed) >= count
    ):
        raise InvalidArgument(
            sentences(
                "new-group-ranks",
                f"new_group() got ranks that cannot form a group of the default group's {count}.",
                "there must be at least one rank, no rank twice, and all must be in the default "
                "group.",
                "pass each rank of the default group at most once.",
            )
        )
    group = dist.new_group(
        listed,
        timeout=arguments.timeout_of("new_group", timeout),
        backend=BACKEND,
        pg_options=pg_options,
        use_local_synchronization=use_local_synchronization,
        group_desc=group_desc,
    )
    return group if isinstance(group, dist.ProcessGroup) else None


@collective
def shrink_group(
    excluded: Sequence[int], *, group: Group | None = None, min_ranks: int = 1
) -> Group:
    """Replace ``group`` by one of its ranks that are not ``excluded``, also after a rank has died.

    Each rank that remains calls it with the same list. The old group ends; with the default group,
    which the new one replaces, all others do. The ranks meet in the store of the old group: it must
    live, as a FileStore or torchrun's does, but not the one that a dead rank 0 served.

    Args:
        excluded: The ranks of ``group`` to leave out, for example the ``ranks`` of a PeerFailure.
        group: The old group. If None, the default group.
        min_ranks: The smallest number of ranks that may remain. If a network partition separates
            the ranks into two parts, each part can take the other part for dead. With
            ``min_ranks=world_size(group) // 2 + 1``, at most one part continues.

    Raises:
        ValueError: ``excluded`` is empty, or not of ranks of the group.
        PeerFailure: fewer than ``min_ranks`` ranks would remain. ``group`` does not change.
        NotSupported: TORCH_DISTRIBUTED_DEBUG=DETAIL, whose groups torch cannot shrink.
        TimeoutError: another rank did not arrive; the text names it.
        SystemError: the store is gone.
    """
    old = arguments.group_of("shrink_group", group)
    listed = arguments.ints_of("shrink_group", "excluded", excluded)
    least = arguments.int_of("shrink_group", "min_ranks", min_ranks)
    if _C.ProcessGroupFarandole.of(old) not in (None, old._get_backend(torch.device("cpu"))):
        raise NotSupported(
            sentences(
                "shrink-under-detail",
                "shrink_group() cannot be called under TORCH_DISTRIBUTED_DEBUG=DETAIL.",
                "torch wraps the group's backend in this mode, and not every version of torch "
                "can shrink the wrapper.",
                "set TORCH_DISTRIBUTED_DEBUG=INFO, or make the smaller group with new_group().",
            )
        )
    ours = [
        device
        for device in old._device_types
        if isinstance(old._get_backend(device), _C.ProcessGroupFarandole)
    ]
    _check_remaining(old, listed, least)
    shrunk = dist.shrink_group(listed, group)
    # torch.distributed books it as gloo's, and its DDP then takes it for a ProcessGroupGloo.
    kind = dist.ProcessGroup.BackendType.CUSTOM
    backend = shrunk._get_backend(torch.device("cpu"))
    for device in ours:
        shrunk._register_backend(device, kind, backend)
    shrunk._set_default_backend(kind)
    return shrunk


def _check_remaining(group: Group, excluded: Sequence[int], min_ranks: int) -> None:
    remaining = group.size() - len(set(excluded))
    others = set(range(group.size())) - {group.rank()}
    is_valid = 0 < len(excluded) == len(others.intersection(excluded))
    if remaining >= min_ranks or not is_valid:  # torch says what is wrong with the list
        return
    error = PeerFailure(
        sentences(
            "too-few-ranks-remain",
            f"shrink_group() would leave {remaining} of the {group.size()} ranks of group "
            f"'{group.group_name}', but min_ranks is {min_ranks}.",
            f"the excluded ranks are {sorted(excluded)}.",
            "end the program on this rank, and start the job again with all ranks; "
            "load_checkpoint() continues from the last save_checkpoint().",
        )
    )
    error.ranks = tuple(sorted(excluded))
    raise error


def rank(group: Group | None = None) -> int:
    """The rank of this process in ``group``."""
    return _C.rank(arguments.group_of("rank", group))


def world_size(group: Group | None = None) -> int:
    """How many ranks ``group`` has."""
    return _C.world_size(arguments.group_of("world_size", group))


def local_rank(group: Group | None = None) -> int:
    """This rank among those of ``group`` on its host."""
    return _C.local_rank(arguments.group_of("local_rank", group))


def local_world_size(group: Group | None = None) -> int:
    """How many ranks of ``group`` are on this host."""
    return _C.local_world_size(arguments.group_of("local_world_size", group))


def abort(group: Group | None = None) -> None:
    """Fail every collective of ``group``, here and on its peers, within 100 ms."""
    _C.abort(arguments.group_of("abort", group))


def destroy(group: Group | None = None) -> None:
    """End ``group`` on this rank, or without one the default group and all others.

    What is pending is aborted; init_process_group() may be called again.
    """
    if group is None and not dist.is_initialized():
        return
    if group is not None:
        arguments.group_of("destroy", group)
    dist.destroy_process_group(group)
