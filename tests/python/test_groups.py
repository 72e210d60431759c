# SPDX-License-Identifier: Apache-2.0
"""Groups come and go: subgroups, again after destroy, debug mode, exit without destroy."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist

import ranks

EXITS = 20


def subgroups(rank: int, world_size: int) -> None:
    even = dist.new_group([0, 2])
    odd = dist.new_group([1, 3])
    everyone = farandole.new_group()
    own = even if rank % 2 == 0 else odd
    tensor, whole = torch.full((2,), float(rank)), torch.ones(1)
    works = [dist.all_reduce(tensor, group=own, async_op=True)]
    works.append(dist.all_reduce(whole, group=everyone, async_op=True))
    dist.barrier()
    for work in works:
        work.wait()
    assert tensor[0].item() == (2 if rank % 2 == 0 else 4)
    assert whole.item() == world_size
    assert farandole.rank(own) == rank // 2
    assert farandole.new_group([3]) is None or rank == 3
    dist.destroy_process_group(own)
    dist.barrier()

    local = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 else None
    if local is not None:
        dist.all_reduce(tensor, group=local)


def test_several_groups_at_once() -> None:
    ranks.run(subgroups, 4)


def again(rank: int, world_size: int, path: str) -> None:
    store = dist.FileStore(path, world_size)
    for round_number in range(3):
        farandole.init_process_group(
            store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=20)
        )
        tensor = torch.full((1,), float(round_number))
        farandole.all_reduce(tensor)
        assert tensor.item() == round_number * world_size
        farandole.destroy()
        farandole.destroy()  # harmless
        assert not farandole.is_initialized()


def test_init_destroy_and_init_again_over_one_store(tmp_path: Path) -> None:
    ranks.run(again, 2, str(tmp_path / "store"), setup=ranks.Setup(backend=None))


def used_after_destroy(rank: int, world_size: int) -> None:
    del rank, world_size
    group = dist.new_group()
    dist.destroy_process_group(group)
    with pytest.raises(farandole.AbortedError, match="after it was shut down"):
        group.allreduce(torch.ones(1)).wait()


def test_a_destroyed_group_says_so() -> None:
    ranks.run(used_after_destroy, 2)


def detail(rank: int, world_size: int) -> None:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0)
    dist.barrier()
    assert torch.equal(tensor, torch.full((3,), float(world_size)))
    assert (farandole.local_rank(), farandole.local_world_size()) == (rank, world_size)
    group = dist.new_group([0, 1])
    assert farandole.local_world_size(group) == 2
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(3 + rank))  # the wrapper finds it
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()


def test_torch_distributed_debug_detail() -> None:
    ranks.run(detail, 2, setup=ranks.Setup(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}))


def mixed(rank: int, world_size: int) -> None:
    del rank
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world_size
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=gloo)
    assert tensor[0].item() == world_size**2
    with pytest.raises(farandole.InvalidArgument, match="cannot tell"):
        farandole.local_rank(gloo)
    farandole.all_reduce(tensor, group=gloo)  # the API takes groups of any backend
    assert tensor[0].item() == world_size**3


def test_beside_gloo_and_as_one_of_two_backends() -> None:
    ranks.run(mixed, 2, setup=ranks.Setup(backend="cpu:farandole"))


# Ranks are forked from a process that has imported torch once; each ends as a script does, through
# the interpreter's and the C library's own exit.
SCRIPT = """
import os, sys, torch, torch.distributed as dist, farandole
torch.set_num_threads(1)
rank = None
for attempt in range(int(sys.argv[2])):
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            break
    else:
        rank = None
        for pid in ranks:
            assert os.waitpid(pid, 0)[1] == 0, f"attempt {attempt}: a rank did not exit cleanly"
        continue
    break
if rank is not None:
    store = dist.FileStore(f"{sys.argv[1]}/store{attempt}", 2)
    dist.init_process_group("farandole", store=store, rank=rank, world_size=2)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    group = dist.new_group()
    work = dist.all_reduce(tensor, async_op=True)
    dist.broadcast(torch.ones(10), src=0, group=group)
    work.wait()
    assert tensor[0].item() == 4.0
"""


def test_scripts_without_destroy_exit_cleanly(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(EXITS)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def in_dev_shm() -> set[Path]:
    return {path for path in Path("/dev/shm").iterdir() if "farandole" in path.name}


def leave(rank: int, world_size: int) -> None:
    del rank, world_size
    dist.all_reduce(torch.ones(10), async_op=True).wait()


def test_nothing_is_left_in_dev_shm() -> None:
    before = in_dev_shm()
    ranks.run(leave, 2)
    assert in_dev_shm() <= before
