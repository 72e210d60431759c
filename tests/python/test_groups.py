# SPDX-License-Identifier: Apache-2.0
"""Groups come and go: subgroups, again after destroy, debug mode, exit without destroy."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist

import ranks

EXITS = 20 if ranks.WHOLE_MATRIX else 8


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

    pair, _ = farandole.new_subgroups(2, timeout=20.0)
    farandole.all_reduce(whole, group=pair)
    assert whole.item() == 2 * world_size
    with pytest.raises(farandole.InvalidArgument, match="new_subgroups"):
        farandole.new_subgroups(2, timeout=-1)

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


def detail_derived(rank: int, world_size: int) -> None:
    world = dist.group.WORLD
    with pytest.raises(farandole.NotSupported, match=r"DETAIL.*\nwhy: .*\nfix: "):
        farandole.shrink_group([0])
    own = ([rank], timedelta(seconds=20), None, "own", "own")
    if hasattr(dist.ProcessGroup, "new_window"):
        assert world.split_group(*own).size() == 1  # torch 2.15's wrapper can
    else:
        with pytest.raises(RuntimeError, match="missing implementation of split"):
            world.split_group(*own)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the group is unharmed, and subgroups are made
    dist.all_reduce(tensor, group=dist.new_group(list(range(world_size))))
    assert tensor.item() == world_size**2


def test_debug_detail_says_what_it_cannot_derive() -> None:
    ranks.run(detail_derived, 2, setup=ranks.Setup(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}))


def mixed(rank: int, world_size: int) -> None:
    del rank
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world_size
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=gloo)
    assert tensor[0].item() == world_size**2
    with pytest.raises(farandole.InvalidArgument, match="does not know"):
        farandole.local_rank(gloo)
    farandole.all_reduce(tensor, group=gloo)  # the API takes groups of any backend
    assert tensor[0].item() == world_size**3


def test_beside_gloo_and_as_one_of_two_backends() -> None:
    ranks.run(mixed, 2, setup=ranks.Setup(backend="cpu:farandole"))


def split(rank: int, world_size: int) -> None:
    world = dist.group.WORLD
    halves = [[0, 2], [1, 3]]
    own = halves[rank % 2]
    # torch.distributed.split_group() asks for a bound accelerator first; this is what it calls.
    half = world.split_group(own, timedelta(seconds=20), None, f"half{rank % 2}", "half")
    assert (half.rank(), half.size()) == (rank // 2, 2)
    tensor = torch.full((3,), float(rank))
    farandole.all_reduce(tensor, group=half)
    assert tensor[0].item() == sum(own)
    assert world.split_group([0], timedelta(seconds=20), None, "one", "one") is None or rank == 0
    with pytest.raises(farandole.InvalidArgument, match="in group 'default'"):
        world.allreduce([tensor, tensor])  # its name is still its own
    merged = world.merge_remote_group(dist.FileStore(os.environ["MERGED"], world_size), world_size)
    whole = torch.ones(1)
    farandole.all_reduce(whole, group=merged)
    assert whole.item() == world_size


def test_split_and_merge(tmp_path: Path) -> None:
    setup = ranks.Setup(env={"MERGED": str(tmp_path / "merged")})
    ranks.run(split, 4, setup=setup)


def reduce_for_ever() -> None:
    while True:
        dist.all_reduce(torch.ones(1000))


def shrunk(rank: int, world_size: int, victim: int) -> list[float]:
    other = dist.new_group([0, 1])
    dist.barrier()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(farandole.CommError, match=f"rank {victim}"):
        reduce_for_ever()
    group = farandole.shrink_group([victim])
    assert group is dist.group.WORLD
    assert dist.get_world_size() == farandole.world_size() == world_size - 1
    assert dist.get_rank() == rank - (rank > victim)
    results = []
    for _ in range(3):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        results.append(tensor.item())
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)
    pair = dist.new_group([0, 2])
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    del pair, other
    return results


@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_of_a_killed_rank_go_on(victim: int) -> None:
    results = ranks.run(shrunk, 4, victim, may_die=[victim])
    survivors = [r for r in range(4) if r != victim]
    assert [results[r] for r in survivors] == [[float(sum(survivors))] * 3] * 3


def shrunk_alive(rank: int, world_size: int) -> None:
    group = dist.new_group(list(range(world_size)))
    with pytest.raises(ValueError, match="out of bounds"):
        farandole.shrink_group([world_size], group=group)
    backend = group._get_backend(torch.device("cpu"))
    with pytest.raises(farandole.InvalidArgument, match="an invalid list of ranks to exclude"):
        backend.shrink([rank])
    if rank != 1:
        with pytest.raises(farandole.PeerFailure, match="would leave 2 of the 3 ranks") as few:
            farandole.shrink_group([1], group=group, min_ranks=3)
        assert few.value.ranks == (1,)
        for wrong in ([], [1, 1], [world_size]):
            with pytest.raises(ValueError, match="rank"):
                farandole.shrink_group(wrong, group=group, min_ranks=world_size + 1)
        smaller = farandole.shrink_group([1], group=group, min_ranks=world_size // 2 + 1)
        tensor = torch.ones(1)
        farandole.all_reduce(tensor, group=smaller)
        assert tensor.item() == world_size - 1
        if rank == 2:  # rank 1 of the smaller group
            smallest = farandole.shrink_group([0], group=smaller)
            assert farandole.world_size(smallest) == 1
    dist.barrier()


def test_a_group_shrinks_twice_beside_the_default_one() -> None:
    ranks.run(shrunk_alive, 3)


def monitored(rank: int, world_size: int) -> str:
    farandole.monitored_barrier()
    farandole.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    if rank in (1, 3):
        time.sleep(2.5)
        return ""
    with pytest.raises(farandole.CommError) as caught:
        farandole.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
    assert isinstance(caught.value, farandole.TimeoutError) or rank != 0
    return str(caught.value)


def test_a_monitored_barrier_names_all_late_ranks_on_rank_0() -> None:
    told = ranks.run(monitored, 4)
    assert "rank 1 (pid" in told[0]
    assert "rank 3 (pid" in told[0]
    assert "rank 1 (pid" in told[2]


def many(rank: int, world_size: int) -> None:
    groups = [dist.new_group(list(range(world_size))) for _ in range(12)]
    works = [dist.all_reduce(torch.ones(100), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
    order = list(range(len(groups)))
    random.Random(rank).shuffle(order)  # another one on each rank
    for i in order:
        if i % 2:
            dist.destroy_process_group(groups[i])
        groups[i] = None
    dist.barrier()


def test_many_groups_end_in_any_order() -> None:
    ranks.run(many, 3)


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


@pytest.mark.system
def test_scripts_without_destroy_exit_cleanly(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(EXITS)],
        env=os.environ | {"FARANDOLE_LOG": "warning"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def fault_of_init() -> farandole.SystemError | None:
    try:
        farandole.init_process_group()
    except farandole.SystemError as error:
        return error
    return None


def with_few_files(rank: int, world_size: int) -> int:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    used = len(list(Path("/proc/self/fd").iterdir()))
    for spare in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, used + 100))
        error = fault_of_init()
        if error is None:
            return spare
        assert "raise the limit of open files (ulimit -n)" in str(error), error
    raise AssertionError("40 more descriptors are not enough")


@pytest.mark.skipif(
    "libclang_rt.asan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer's build checks virtual calls with pipes, which need descriptors",
)
def test_a_lack_of_file_descriptors_is_told_while_the_ranks_meet() -> None:
    # torch aborts a process that has none left for its store.
    ranks.run(with_few_files, 1, setup=ranks.Setup(backend=None))


def in_dev_shm() -> set[Path]:
    return {path for path in Path("/dev/shm").iterdir() if "farandole" in path.name}


def leave(rank: int, world_size: int) -> None:
    del rank, world_size
    dist.all_reduce(torch.ones(10), async_op=True).wait()


def test_nothing_is_left_in_dev_shm() -> None:
    before = in_dev_shm()
    ranks.run(leave, 2)
    deadline = time.monotonic() + 20  # other tests beside this one have their own for a moment
    while not in_dev_shm() <= before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
