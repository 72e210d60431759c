# SPDX-License-Identifier: Apache-2.0
"""Groups that are made again: after a restart of the ranks, or after a failure in one process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import _C
from torch import nn

import ranks
import warm_python

# In the first attempt rank 1 dies where argv[1] says.
JOB = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
import farandole

def die_at(place):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        if sys.argv[1] == place:
            os._exit(3)

die_at("start")
farandole.init_process_group(timeout=timedelta(seconds=20))
die_at("init")
group = dist.new_group([0, 1])
die_at("group")
model = farandole.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
sharded = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
sharded.step()
one = torch.ones(1)
dist.all_reduce(one, group=group)
line = f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} sum {one.item()}\\n"
os.write(1, line.encode())  # at once: ranks share the pipe
dist.destroy_process_group()
"""


@pytest.mark.system
@pytest.mark.parametrize("place", ["start", "init", "group"])
def test_torchrun_restarts_ranks_of_which_one_died(place: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    torchrun = [warm_python.executable(), "-m", "torch.distributed.run", "--standalone"]
    options = ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    done = subprocess.run(
        [*torchrun, *options, str(script), place],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempt 1 sum 2.0") == 2, done.stdout + done.stderr


def retried(rank: int, world_size: int) -> None:
    """Rank 0 gives up before rank 1 comes; both then meet in the same store."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["PORT"]), None, False)
    if rank == 1:
        time.sleep(1.0)
    for _ in range(5):
        try:
            farandole.init_process_group(
                store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=0.7)
            )
        except (farandole.TimeoutError, farandole.AbortedError):
            assert rank == 0
            assert not farandole.is_initialized()
        else:
            break
    assert farandole.world_size() == world_size
    model = farandole.DistributedDataParallel(nn.Linear(2, 2))
    # It asks the engine for the default group, whose name is "1" after a failure.
    sharded = farandole.ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=1)
    model(torch.ones(1, 2)).sum().backward()
    sharded.step()
    dist.destroy_process_group()


def test_ranks_that_retry_meet_and_the_engine_knows_their_group() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    setup = ranks.Setup(backend=None, env={"PORT": str(store.port)})
    ranks.run(retried, 2, setup=setup)


def made_again(rank: int, world_size: int) -> None:
    store = dist.TCPStore("127.0.0.1", int(os.environ["PORT"]), None, False)
    one = torch.ones(1)
    for members in ([0, 1], [1, 2], [2, 0]):
        farandole.init_process_group(store=store, rank=rank, world_size=world_size)
        group = farandole.new_group(members)  # of the name that the one before had
        if group is not None:
            dist.all_reduce(one.fill_(1.0), group=group)
            assert one.item() == len(members)
        farandole.DistributedDataParallel(nn.Linear(2, 2))
        dist.destroy_process_group()


def test_names_recur_in_one_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    setup = ranks.Setup(backend=None, env={"PORT": str(store.port)})
    ranks.run(made_again, 3, setup=setup)


def in_another_order(rank: int, world_size: int) -> None:
    """Two threads make a group each, over one connection to the store."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["PORT"]), None, False)
    made: dict[str, int] = {}

    def make(name: str) -> None:
        options = _C.ProcessGroupFarandole.Options(timedelta(seconds=20))
        options.group_name = name
        group = _C.ProcessGroupFarandole(dist.PrefixStore(name, store), rank, world_size, options)
        made[name] = group.size()

    threads = [threading.Thread(target=make, args=(name,)) for name in ("a", "b")]
    for thread in threads if rank == 0 else threads[::-1]:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    assert made == {"a": world_size, "b": world_size}


def test_threads_form_groups_in_any_order() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    setup = ranks.Setup(backend=None, env={"PORT": str(store.port)})
    ranks.run(in_another_order, 2, setup=setup)


def server_dies(rank: int, world_size: int) -> str:
    """Rank 0 serves the store, and dies while the others wait for rank 2."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"]
    )
    if rank == 2:  # comes to the store, which waits for all, and no further
        dist.TCPStore("127.0.0.1", int(os.environ["PORT"]), world_size, False)
        time.sleep(4)
        return ""
    if rank == 0:
        threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(farandole.PeerFailure) as caught:
        farandole.init_process_group()
    return str(caught.value)


def free_port() -> str:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    return str(store.port)


def test_a_rank_that_dies_with_the_store_is_named() -> None:
    setup = ranks.Setup(backend=None, env={"PORT": free_port()})
    assert "rank 0 (pid" in ranks.run(server_dies, 3, setup=setup, may_die=[0])[1]


def dies_before_ddp(rank: int, world_size: int) -> float:
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(farandole.CommError, match=r"rank 1 \(pid"):
        farandole.DistributedDataParallel(nn.Linear(2, 2))
    return time.monotonic() - begin


def test_a_rank_that_dies_before_the_first_replica_is_named_at_once() -> None:
    results = ranks.run(dies_before_ddp, 3, may_die=[1])
    assert max(results[0], results[2]) < 3
