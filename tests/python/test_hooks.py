# SPDX-License-Identifier: Apache-2.0
"""What torch has called around collectives since 2.15: before and after them, and before aborts."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

import ranks


def world() -> Any:  # newer than the stubs of the oldest torch that is supported
    return dist.group.WORLD


def aborted(rank: int, world_size: int) -> list[str]:
    calls: list[str] = []
    assert world().supports_abort_hooks
    world().register_abort_hook(7, lambda: calls.append("second"))
    world().register_abort_hook(3, lambda: calls.append("first"))
    world().register_abort_hook(5, lambda: calls.append("gone"))
    world().unregister_abort_hook(5)
    world().unregister_abort_hook(99)  # harmless
    dist.barrier()
    if rank == 0:
        time.sleep(0.3)
        assert not calls
        farandole.abort()
    else:
        with pytest.raises(farandole.AbortedError):
            farandole.all_reduce(torch.ones(1), async_op=rank == 2).wait()
    with pytest.raises(farandole.AbortedError):
        dist.barrier()
    farandole.abort()
    del world_size
    return calls


def test_abort_hooks_are_called_once_and_in_order_on_every_rank() -> None:
    assert ranks.run(aborted, 3) == [["first", "second"]] * 3


def killed(rank: int, world_size: int, how: str) -> list[str]:
    calls: list[str] = []

    def hook() -> None:
        calls.append(f"{farandole.rank()} of {world_size}")
        farandole.abort()  # from within: does not wait for itself
        raise ValueError("what a hook throws is logged")

    world().register_abort_hook(1, hook)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    calls_of_peer = {"collective": dist.barrier, "transfer": lambda: dist.recv(torch.ones(1), 1)}
    with pytest.raises(farandole.CommError):
        calls_of_peer[how]()
    return calls


@pytest.mark.parametrize("how", ["collective", "transfer"])
def test_a_death_calls_the_abort_hooks(how: str) -> None:
    assert ranks.run(killed, 2, how, may_die=[1])[0] == ["0 of 2"]


def late(rank: int, world_size: int) -> list[str]:
    del world_size
    calls: list[str] = []
    world().register_abort_hook(1, lambda: calls.append("called"))
    dist.barrier()
    if rank == 1:
        time.sleep(2)
        return []
    with pytest.raises(farandole.TimeoutError):
        dist.barrier()
    return calls


def test_a_timeout_calls_the_abort_hooks() -> None:
    assert ranks.run(late, 2, setup=ranks.Setup(timeout_s=0.5))[0] == ["called"]


def watched(rank: int, world_size: int) -> None:
    seen: list[tuple[str, str, bool, int]] = []
    group = world()
    group.register_pre_hook(
        1, lambda call: seen.append(("pre", call.name.name, call.async_op, call.op_id))
    )
    group.register_post_hook(
        1, lambda call: seen.append(("post", call.name.name, call.async_op, call.op_id))
    )
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0, async_op=True).wait()
    dist.barrier()
    group.unregister_pre_hook(1)
    group.unregister_post_hook(1)
    dist.barrier()
    names = [(when, name) for when, name, _, _ in seen]
    assert names == [
        (when, name) for name in ("ALLREDUCE", "BROADCAST", "BARRIER") for when in ("pre", "post")
    ]
    assert [a for _, name, a, _ in seen if name == "BROADCAST"] == [True, True]
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        assert before[3] == after[3]  # the same call
    assert tensor[0].item() == world_size
    del rank


def test_pre_and_post_hooks_see_every_collective() -> None:
    ranks.run(watched, 2)


def recorded(rank: int, world_size: int) -> None:
    recorder: Any = _distributed_c10d
    dist.all_reduce(torch.ones(10))
    dist.all_reduce(torch.ones(10), async_op=True).wait()
    dump = json.loads(recorder._dump_fr_trace_json(True, False, "farandole"))
    entries = [(entry["profiling_name"], entry["state"]) for entry in dump["entries"]]
    assert entries == [("farandole:all_reduce", "completed")] * 2
    del rank, world_size


def test_torchs_flight_recorder_sees_collectives_complete() -> None:
    setup = ranks.Setup(env={"TORCH_FR_BUFFER_SIZE": "100"})
    ranks.run(recorded, 2, setup=setup)
