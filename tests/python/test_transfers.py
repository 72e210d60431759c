# SPDX-License-Identifier: Apache-2.0
"""send and recv: tags, any source, many at once, beside collectives, futures, failures."""

from __future__ import annotations

import gc
import os
import signal
import time
from datetime import timedelta

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks

SIZES = [0, 1, 1000, 300_000]


def to_neighbours(rank: int, world_size: int) -> None:
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn):
        for size in SIZES:
            own = (torch.arange(size) % 7 + rank).to(dtype)
            expected = (torch.arange(size) % 7 + before).to(dtype)
            output = torch.empty(size, dtype=dtype)
            work = dist.isend(own, after)
            dist.recv(output, before)
            work.wait()
            assert torch.equal(output.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_send_and_recv_of_every_dtype_and_size(world_size: int) -> None:
    ranks.run(to_neighbours, world_size)


def tags(rank: int, world_size: int) -> None:
    del world_size
    if rank == 0:
        works = [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in (5, 0, 2**31 - 1)]
        works += [dist.isend(torch.tensor([i]), 1, tag=9) for i in range(100)]
        for work in works:
            work.wait()
        return
    for tag in (2**31 - 1, 5, 0):  # in another order than they were sent
        tensor = torch.empty(3)
        dist.recv(tensor, 0, tag=tag)
        assert torch.equal(tensor, torch.full((3,), float(tag)))
    received = [torch.empty(1, dtype=torch.int64) for _ in range(100)]
    works = [dist.irecv(tensor, 0, tag=9) for tensor in received]
    for work in works:
        work.wait()
        assert work.is_completed()
        assert work.is_success()
    assert torch.cat(received).tolist() == list(range(100))  # one tag: in order


def test_tags_and_many_in_flight() -> None:
    ranks.run(tags, 2)


def from_anyone(rank: int, world_size: int) -> None:
    if rank != 0:
        dist.send(torch.full((2,), float(rank)), 0)
        farandole.send(torch.full((2,), 10.0 * rank), 0, tag=1)
        return
    seen = []
    for _ in range(1, world_size):
        tensor = torch.empty(2)
        source = dist.recv(tensor)
        assert tensor[0].item() == source
        seen.append(source)
    assert sorted(seen) == list(range(1, world_size))
    for _ in range(1, world_size):
        tensor = torch.empty(2)
        work = farandole.recv(tensor, tag=1)
        assert tensor[0].item() == 10 * farandole.source_rank(work)


def test_recv_from_any_source() -> None:
    ranks.run(from_anyone, 4)


def exchange(rank: int, own: Tensor, output: Tensor) -> None:
    operations = [dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, output, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def batched(rank: int, world_size: int) -> None:
    del world_size
    for size in SIZES:
        own, output = torch.full((size,), float(rank)), torch.empty(size)
        exchange(rank, own, output)
        assert torch.equal(output, torch.full((size,), 1.0 - rank))
    objects: list[object] = [{"from": rank}, "x" * 1000] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(objects, dst=1)
    else:
        dist.recv_object_list(objects, src=0)
    assert objects == [{"from": 0}, "x" * 1000]


def test_batches_and_objects() -> None:
    ranks.run(batched, 2)


def test_batches_and_objects_under_debug_detail() -> None:
    ranks.run(batched, 2, setup=ranks.Setup(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}))


def strided(rank: int, world_size: int) -> None:
    del world_size
    columns = torch.arange(12.0).view(3, 4).t()
    if rank == 0:
        dist.send(columns, 1)
        dist.send(torch.nn.Parameter(columns), 1)
        return
    target = torch.zeros(4, 6)
    dist.recv(target[:, ::2], 0)
    assert torch.equal(target[:, ::2], columns)
    assert torch.equal(target[:, 1::2], torch.zeros(4, 3))
    parameter = torch.nn.Parameter(torch.zeros(3, 4)).t()
    work = dist.irecv(parameter, 0)
    while not work.is_completed():
        time.sleep(0.001)
    assert torch.equal(parameter, columns)


def test_tensors_of_any_stride() -> None:
    ranks.run(strided, 2)


def beside_collectives(rank: int, world_size: int) -> None:
    outputs = [torch.empty(100_000) for _ in range(world_size)]
    works = [dist.irecv(output, r) for r, output in enumerate(outputs) if r != rank]
    reduced = [dist.all_reduce(torch.ones(10_000), async_op=True) for _ in range(5)]
    own = torch.full((100_000,), float(rank))
    works += [dist.isend(own, r) for r in range(world_size) if r != rank]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 1
    for work in works + reduced:
        work.wait()
    for r, output in enumerate(outputs):
        assert r == rank or torch.equal(output, torch.full((100_000,), float(r)))


def test_transfers_run_beside_collectives() -> None:
    ranks.run(beside_collectives, 3)


def futures(rank: int, world_size: int) -> None:
    del world_size
    if rank == 0:
        time.sleep(0.3)
        dist.send(torch.tensor([3.0]), 1)
        dist.recv(torch.empty(1), 1, tag=1)
        dist.send(torch.tensor([4.0]), 1, tag=2)
        return
    tensor, later = torch.empty(1), torch.empty(1)
    never_first = dist.irecv(later, 0, tag=2).get_future()
    work = dist.irecv(tensor, 0)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    with pytest.raises(farandole.TimeoutError, match="reached its timeout of 20 ms"):
        work.wait(timedelta(milliseconds=20))
    assert torch.equal(doubled.wait(), torch.tensor([6.0]))  # nobody waits for the work itself
    dist.send(tensor, 0, tag=1)
    assert torch.equal(never_first.wait()[0], torch.tensor([4.0]))
    assert [id(t) for t in work.result()] == [id(tensor)]


def test_futures_are_fulfilled_without_anybody_waiting() -> None:
    ranks.run(futures, 2)


def dropped(rank: int, world_size: int) -> None:
    del world_size
    if rank == 0:
        for i in range(50):
            dist.isend(torch.full((50_000,), float(i)), 1)  # the group keeps the tensor
        dist.recv(torch.empty(1), 1)
        return
    time.sleep(0.2)
    for i in range(50):
        tensor = torch.empty(50_000)
        dist.recv(tensor, 0)
        assert torch.equal(tensor, torch.full((50_000,), float(i)))
    dist.send(torch.ones(1), 0)


def test_a_dropped_send_is_sent_nevertheless() -> None:
    ranks.run(dropped, 2)


def wrong(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    ones = torch.ones(4)
    invalid = farandole.InvalidArgument
    with pytest.raises(invalid, match="invalid peer rank: 7"):
        group.send([ones], 7, 0)
    with pytest.raises(invalid, match="single-element tensor list"):
        group.recv([ones, ones], 0, 0)
    with pytest.raises(invalid, match="elements overlap"):
        farandole.recv(torch.ones(1).expand(3))
    if rank == 0:
        dist.send(ones, 1)
    else:
        with pytest.raises(farandole.MismatchError, match="received 16 bytes from rank 0"):
            dist.recv(torch.empty(3), 0)
    dist.all_reduce(ones)
    assert ones[0].item() == world_size  # the group stays usable
    pending = dist.irecv(ones, 1 - rank)
    dist.barrier()  # or the peer's end comes before this rank's irecv()
    dist.destroy_process_group()
    with pytest.raises(farandole.CommError):
        pending.wait()
    assert not pending.is_success()
    with pytest.raises(farandole.AbortedError, match="after it was shut down"):
        group.send([ones], 1 - rank, 0)


def test_misuse_and_what_is_pending_at_the_end() -> None:
    ranks.run(wrong, 2)


def killed(rank: int, world_size: int) -> str:
    del world_size
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(farandole.CommError) as caught:
        dist.recv(torch.empty(10), 1)
    assert time.monotonic() - begin < 1.5 * ranks.load()
    return str(caught.value)


def test_a_killed_sender_is_named() -> None:
    results = ranks.run(killed, 3, may_die=[1])
    assert "rank 1 (pid" in results[0]
    assert "rank 1 (pid" in results[2]


def late(rank: int, world_size: int) -> None:
    del world_size
    if rank == 1:
        time.sleep(2.5)
        return
    with pytest.raises(
        farandole.TimeoutError, match=r"transfer of 4 bytes.*timeout of .* on rank 0"
    ):
        dist.recv(torch.empty(1), 1)


def test_a_receive_times_out() -> None:
    ranks.run(late, 2, setup=ranks.Setup(timeout_s=1.0))


def outlived(rank: int, world_size: int) -> None:
    group = dist.new_group()
    reduced, large = torch.ones(1000), torch.zeros(5_000_000)
    works = [dist.all_reduce(reduced, group=group, async_op=True)]
    works += [dist.isend(torch.ones(1), rank, group=group, tag=3)]
    works += [dist.irecv(torch.empty(1), rank, group=group, tag=3)]
    for work in works:
        work.wait()
    peer = (rank + 1) % world_size
    sent = dist.isend(
        large, peer, group=group
    )  # may end: a peer takes in what it has not asked for
    lost = [dist.irecv(reduced, peer, group=group, tag=tag) for tag in (8, 9)]
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert all(work.is_completed() for work in [sent, *works, *lost])
    for work in works:
        work.wait()
    for work in lost:
        with pytest.raises(farandole.CommError):
            work.wait()


def test_works_outlive_their_group() -> None:
    ranks.run(outlived, 2)


def forked(rank: int, world_size: int) -> None:
    del world_size
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(farandole.CommError, match="forked"):
                dist.send(torch.ones(1), 1 - rank)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    output = torch.empty(1)
    exchange(rank, torch.ones(1), output)


def test_a_send_in_a_forked_child_is_an_error_there() -> None:
    ranks.run(forked, 2)
