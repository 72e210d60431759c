# SPDX-License-Identifier: Apache-2.0
"""Groups that get other ranks while they live, which torch can have since 2.15."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import ranks

c10d: Any = distributed_c10d  # newer than the stubs of the oldest torch that is supported
OWN_GROUP = ranks.Setup(backend=None)


def init(path: str, rank: int, world_size: int, *, alone: bool = False) -> dist.Store:
    """Makes the default group, with ``alone`` one without ranks; returns a store beside its own."""
    settings: Any = {"enable_reconfigure": alone}
    dist.init_process_group(
        "farandole",
        store=dist.FileStore(path, 8),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=20),
        **settings,
    )
    assert c10d._supports_reconfigure()
    return dist.FileStore(path + "_handles", 8)


def collected(store: dist.Store, name: str, members: list[int], own: int) -> list[str]:
    """The handles of all ``members``, in their order."""
    store.set(f"{name}/{own}", c10d._get_reconfigure_handle())
    return [store.get(f"{name}/{member}").decode() for member in members]


def check_world(rank: int, world_size: int) -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
    assert (farandole.rank(), farandole.local_world_size()) == (rank, world_size)
    for asynchronous in (False, True):
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, async_op=asynchronous and True)
        dist.barrier()
        assert tensor[0].item() == sum(range(world_size))
    if world_size > 1:
        if rank == 0:
            dist.send(torch.ones(2), 1)
        elif rank == 1:
            dist.recv(torch.ones(2), 0)
    shared = farandole.symmetric_empty(20).fill_(1)
    dist.all_reduce(shared)
    assert shared[0].item() == world_size


def survives(rank: int, world_size: int, path: str, victim: int) -> str:
    store = init(path, rank, world_size)
    check_world(rank, world_size)
    before = c10d._get_reconfigure_handle()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    pending = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(farandole.CommError, match=f"rank {victim}"):
        pending.wait()
    survivors = [r for r in range(world_size) if r != victim]
    handles = collected(store, "after_death", survivors, rank)
    work = c10d._reconfigure(uuid=5, handles=handles, timeout=timedelta(seconds=10))
    assert work.wait()
    check_world(survivors.index(rank), len(survivors))
    assert c10d._get_reconfigure_handle() != before
    # Groups made of it, and it may shrink too: all meet where its ranks have met.
    pair = dist.group.WORLD.split_group([0, 1], timedelta(seconds=20), None, "pair", "pair")
    if pair is not None:
        farandole.barrier(group=pair)
    return before


@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_of_a_killed_rank_go_on_in_the_same_group(victim: int, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    handles = ranks.run(survives, 4, path, victim, setup=OWN_GROUP, may_die=[victim])
    assert len({handle for handle in handles if handle}) == 3


def grows(rank: int, world_size: int, path: str, as_set: bool) -> int:
    """Ranks 0 and 1 begin; 2 and 3 join; 0 leaves."""
    del world_size
    joins = rank >= 2
    store = init(path, rank if not joins else 0, 2, alone=joins)
    if joins:
        with pytest.raises(farandole.InvalidArgument, match="had no ranks"):
            dist.barrier()
        assert c10d._get_reconfigure_handle().startswith("farandole:0:new:")
    else:
        check_world(rank, 2)
    everyone = [0, 1, 2, 3] if as_set else [2, 0, 3, 1]
    handles = collected(store, "grown", everyone, rank)
    c10d._reconfigure(uuid=1, handles=set(handles) if as_set else handles).wait()
    own = dist.get_rank()
    check_world(own, 4)
    if as_set:
        assert own == rank if not joins else own in (2, 3)  # who was there first comes first
    else:
        assert own == everyone.index(rank)
    if rank == 0:
        dist.destroy_process_group()
        return own
    rest = [3, 2, 1]
    handles = collected(store, "smaller", rest, rank)
    c10d._reconfigure(uuid=2, handles=handles).wait()
    check_world(rest.index(rank), 3)
    handles = collected(store, "again", rest, rank)
    c10d._reconfigure(uuid=-3, handles=handles).wait()  # the same ranks
    check_world(rest.index(rank), 3)
    return own


@pytest.mark.parametrize("as_set", [False, True])
def test_new_ranks_join_and_old_ones_leave(as_set: bool, tmp_path: Path) -> None:
    numbers = ranks.run(grows, 4, str(tmp_path / "store"), as_set, setup=OWN_GROUP)
    assert sorted(numbers) == [0, 1, 2, 3]


def replaces(rank: int, world_size: int, path: str) -> None:
    """Rank 0 dies; rank 2 takes its place."""
    store = init(path, 0 if rank == 2 else rank, world_size - 1, alone=rank == 2)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        with pytest.raises(farandole.PeerFailure, match="rank 0"):
            dist.barrier()
    handles = collected(store, "replaced", [2, 1], rank)
    c10d._reconfigure(uuid=0, handles=handles).wait()
    check_world(0 if rank == 2 else 1, 2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()


def test_a_new_rank_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    ranks.run(replaces, 3, str(tmp_path / "store"), setup=OWN_GROUP, may_die=[0])


def wrong(rank: int, world_size: int, path: str) -> None:
    invalid = farandole.InvalidArgument
    store = init(path, rank, world_size)
    both = collected(store, "both", [0, 1], rank)
    with pytest.raises(invalid, match="the list is empty"):
        c10d._reconfigure(uuid=1, handles=[])
    with pytest.raises(invalid, match="twice"):
        c10d._reconfigure(uuid=1, handles=[both[0], both[0]])
    for handle in ("gloo:0:1:", "farandole:x:first:1", "farandole:0"):
        with pytest.raises(invalid, match="does not come from a rank of backend farandole"):
            c10d._reconfigure(uuid=1, handles=[handle])
    with pytest.raises(invalid, match="no handle of this rank"):
        c10d._reconfigure(uuid=1, handles=[both[1 - rank]])
    with pytest.raises(invalid, match="the hint 'color'"):
        c10d._reconfigure(uuid=1, handles=both, hints={"color": "blue"})
    check_world(rank, world_size)  # nothing has happened yet
    window = c10d._new_window(farandole.symmetric_empty(3))
    c10d._reconfigure(uuid=1, handles=both).wait()
    with pytest.raises(farandole.AbortedError, match="after its group had ended"):
        window.signal(0, False)
    both = collected(store, "again", [0, 1], rank)
    with pytest.raises(invalid, match="uuid 1 a second time"):
        c10d._reconfigure(uuid=1, handles=both)
    check_world(rank, world_size)
    if rank == 0:
        begin = time.monotonic()
        with pytest.raises(farandole.TimeoutError, match="rank 1"):
            c10d._reconfigure(uuid=2, handles=both, timeout=timedelta(seconds=1))
        assert 0.9 < time.monotonic() - begin < 5 * ranks.load()
        with pytest.raises(invalid, match="had no ranks"):
            dist.barrier()
    c10d._reconfigure(uuid=3, handles=both).wait()
    check_world(rank, world_size)
    dist.group.WORLD._get_backend(torch.device("cpu")).shutdown()
    with pytest.raises(farandole.AbortedError, match="after it was shut down"):
        c10d._reconfigure(uuid=4, handles=both)


def test_misuse_is_told_and_a_failed_try_may_be_followed_by_another(tmp_path: Path) -> None:
    ranks.run(wrong, 2, str(tmp_path / "store"), setup=OWN_GROUP)


def interrupted(rank: int, world_size: int, path: str) -> list[str]:
    store = init(path, rank, world_size)
    hooks: list[str] = []
    world: Any = dist.group.WORLD
    world.register_abort_hook(1, lambda: hooks.append("abort"))
    dist.barrier()
    handles = collected(store, "all", list(range(world_size)), rank)
    pending = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    c10d._reconfigure(uuid=1, handles=handles).wait()
    if pending is not None:
        with pytest.raises(farandole.CommError):
            pending.wait()
    check_world(rank, world_size)
    return hooks


def test_what_is_pending_is_aborted(tmp_path: Path) -> None:
    hooks = ranks.run(interrupted, 2, str(tmp_path / "store"), setup=OWN_GROUP)
    assert hooks == [[], []]  # it is no failure
