# SPDX-License-Identifier: Apache-2.0
"""One-sided writes and signals, which torch has since 2.15."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

import ranks

# Newer than the stubs of the oldest torch that is supported.
c10d: Any = distributed_c10d
bindings: Any = _distributed_c10d


def everyone_puts(rank: int, world_size: int, asynchronous: bool) -> None:
    assert c10d._supports_window()
    own = farandole.symmetric_empty(world_size, 5000)
    window = c10d._new_window(own)
    for round_number in range(10):
        source = torch.full((5000,), float(rank + 100 * round_number))
        works = []
        for step in range(world_size):
            peer = (rank + step) % world_size
            works.append(window.put(source, peer, 5000 * rank, asynchronous))
            works.append(window.signal(peer, asynchronous))
        for peer in range(world_size):
            window.wait_signal(peer, False)
            expected = torch.full((5000,), float(peer + 100 * round_number))
            assert torch.equal(own[peer], expected)
        for work in works:
            work.wait()
            assert work.is_success()
        dist.barrier()
    window.tensor_deregister()


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_put_before_a_signal_is_there(world_size: int, asynchronous: bool) -> None:
    ranks.run(everyone_puts, world_size, asynchronous)


def exchanged(rank: int, world_size: int) -> None:
    peer = 1 - rank
    window = c10d._new_window(farandole.symmetric_empty(4).zero_())
    for _ in range(50):
        arrived = window.wait_signal(peer, True)  # on a thread of its own
        window.signal(peer, False)  # does not wait for it
        assert arrived.wait()
        assert arrived.is_completed()
    del world_size


def test_a_signal_passes_an_asynchronous_wait() -> None:
    ranks.run(exchanged, 2)


def mapped(rank: int, world_size: int) -> None:
    memory = farandole.symmetric_empty(100, dtype=torch.int64)
    shapes = [(rows + 2, 3) for rows in range(world_size)]
    rows, columns = shapes[rank]
    own = memory[rank : rank + rows * columns].view(rows, columns)  # each at another place
    window = c10d._new_window()
    window.tensor_register(own, True)
    own.fill_(rank)
    dist.barrier()
    for peer in range(world_size):
        remote = window.map_remote_tensor(peer)
        assert remote.shape == shapes[peer]
        assert remote.dtype == torch.int64
        assert torch.equal(remote, torch.full(shapes[peer], peer))
        assert window.get_attr(peer).access_type.name == "UNIFIED"
    dist.barrier()
    after = (rank + 1) % world_size
    window.map_remote_tensor(after)[1, 2] = 70 + rank  # as good as a put
    window.put(torch.tensor([[8], [9]]).t(), after, 0, False)  # strided
    dist.barrier()
    before = (rank - 1) % world_size
    assert own[1, 2].item() == 70 + before
    assert own[0].tolist() == [8, 9, rank]
    dist.barrier()
    kept = window.map_remote_tensor(after)
    window.tensor_deregister()
    window.tensor_register(memory, False)  # again, another one
    window.tensor_deregister()
    del window, own, memory
    dist.destroy_process_group()
    assert kept[1, 2].item() == 70 + rank  # the memory lives while somebody sees it


@pytest.mark.parametrize("world_size", [1, 3])
def test_remote_tensors_are_the_memory_itself(world_size: int) -> None:
    ranks.run(mapped, world_size)


def wrong(rank: int, world_size: int) -> None:
    invalid, mismatch = farandole.InvalidArgument, farandole.MismatchError
    with pytest.raises(invalid, match=r"symmetric_empty"):
        c10d._new_window(torch.ones(3))
    window = c10d._new_window()
    own = farandole.symmetric_empty(10)
    with pytest.raises(invalid if rank == 0 else mismatch, match="symmetric"):
        window.tensor_register(torch.ones(10) if rank == 0 else own)
    other = farandole.symmetric_empty(10)
    with pytest.raises(mismatch, match="a different allocation"):
        window.tensor_register(other if rank == 0 else own)
    with pytest.raises(invalid, match="without a tensor"):
        window.tensor_deregister()
    with pytest.raises(invalid, match="without a tensor"):
        window.put(torch.ones(1), 0, 0, False)
    with pytest.raises(invalid, match="row-major"):
        window.tensor_register(own.view(2, 5).t())
    window.tensor_register(own)
    with pytest.raises(invalid, match="has a tensor"):
        window.tensor_register(own)
    with pytest.raises(invalid, match="type Double for a window of type Float"):
        window.put(torch.ones(1).double(), 0, 0, False)
    for offset in (-1, 8):
        with pytest.raises(invalid, match=f"3 elements for offset {offset}"):
            window.put(torch.ones(3), 0, offset, False)
    for call in (window.signal, window.wait_signal):
        with pytest.raises(invalid, match="invalid peer rank: 2"):
            call(world_size, False)
    hinted = bindings.PutOptions()
    hinted.hints = {"color": "blue"}
    with pytest.raises(invalid, match="the hint 'color'"):
        window.put(torch.ones(1), 0, 0, False, hinted)
    window.signal(1 - rank, False)
    window.wait_signal(1 - rank, False)  # the group has stayed usable
    dist.destroy_process_group()
    with pytest.raises(farandole.AbortedError, match="after its group had ended"):
        window.signal(0, False)


def test_misuse_is_told() -> None:
    ranks.run(wrong, 2)


def left_alone(rank: int, world_size: int, how: str) -> str:
    del world_size
    window = c10d._new_window(farandole.symmetric_empty(10))
    window.signal(1 - rank, False)
    window.wait_signal(1 - rank, False)
    if rank == 1:
        if how == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(2)
        return ""
    begin = time.monotonic()
    options = bindings.WaitSignalOptions()
    if how == "late":
        options.timeout = timedelta(seconds=0.5)
    with pytest.raises(farandole.CommError) as caught:
        window.wait_signal(1, how == "late", options).wait()
    assert time.monotonic() - begin < 1.5 * ranks.load()
    return type(caught.value).__name__ + str(caught.value)


def test_a_dead_peer_is_named_within_a_second() -> None:
    text = ranks.run(left_alone, 2, "death", may_die=[1])[0]
    assert text.startswith("PeerFailure")
    assert "signal of rank 1 (pid" in text


def test_a_late_peer_is_named_at_the_timeout() -> None:
    text = ranks.run(left_alone, 2, "late")[0]
    assert text.startswith("TimeoutError")
    assert "timeout of 500 ms: rank 1 (pid" in text


def forked(rank: int, world_size: int) -> None:
    window = c10d._new_window(farandole.symmetric_empty(10).zero_())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                lambda: window.put(torch.ones(1), 0, 0, False),
                lambda: window.signal(0, False),
                lambda: window.wait_signal(0, True),
            ):
                with pytest.raises(farandole.CommError, match="forked"):
                    call()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()
    assert window.map_remote_tensor((rank + 1) % world_size).sum().item() == 0


def test_a_forked_child_has_no_window() -> None:
    ranks.run(forked, 2)
