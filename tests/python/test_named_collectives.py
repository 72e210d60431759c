# SPDX-License-Identifier: Apache-2.0
"""Collectives that ranks start in different orders."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole.named import Handle, NamedCollectives, Request, Settings
from farandole.named.agreement import Agreement
from farandole.named.request import Signature

import ranks


@contextmanager
def collectives(settings: Settings | None = None) -> Iterator[NamedCollectives]:
    named = NamedCollectives(settings=settings)
    try:
        yield named
        dist.barrier()
    finally:
        named.close()


def summed(
    named: NamedCollectives, name: str, value: float, count: int = 3
) -> farandole.named.Handle:
    return named.submit(name, Request("all_reduce", [torch.full((count,), value)], op="sum"))


def in_other_orders(rank: int, world_size: int) -> None:
    with collectives() as named:
        for step in range(30):
            names = [f"tensor{k}" for k in range(20)]
            random.Random(100 * step + rank).shuffle(names)
            handles = {name: summed(named, name, float(name[6:]) + rank) for name in names}
            random.Random(step).shuffle(names)
            for name in names:
                total = world_size * float(name[6:]) + sum(range(world_size))
                assert named.wait(handles[name])[0].tolist() == [total] * 3, name


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_may_start_operations_in_any_order(world_size: int) -> None:
    ranks.run(in_other_orders, world_size)


def one_after_the_other(rank: int, world_size: int) -> None:
    with collectives() as named:
        for step in range(50):
            first, second = ("a", "b") if (rank + step) % 2 else ("b", "a")
            early = summed(named, first, 1.0)
            if rank == 0:
                time.sleep(0.002)
            late = summed(named, second, 1.0)
            assert named.wait(early)[0][0] == world_size
            assert named.wait(late)[0][0] == world_size


def test_ranks_that_wait_for_different_names_meet() -> None:
    ranks.run(one_after_the_other, 2)


def crossed(rank: int, world_size: int) -> None:
    """Rank 0 waits for a while rank 1 has not asked for it, and the other way round."""
    with collectives() as named:
        for _ in range(20):
            own, other = ("a", "b") if rank == 0 else ("b", "a")
            first = summed(named, own, 1.0)
            asked: list[Handle] = []
            late = threading.Timer(0.01, ask, (named, other, asked))
            late.start()
            assert named.wait(first)[0][0] == world_size
            late.join()
            named.wait(asked[0])


def ask(named: NamedCollectives, name: str, asked: list[Handle]) -> None:
    asked.append(summed(named, name, 1.0))


def test_a_request_of_another_thread_ends_a_wait() -> None:
    ranks.run(crossed, 2)


def interrupted(rank: int, world_size: int) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with collectives() as named, named._turn:  # as if its thread had it
        handle = summed(named, "a", 1.0)
        wait, named._changed.wait = named._changed.wait, interrupt  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            named.wait(handle)
        named._changed.wait = wait  # type: ignore[method-assign]
        assert named._waiters == 0


def test_an_interrupted_wait_leaves_nobody_who_waits() -> None:
    ranks.run(interrupted, 1)


def mismatched(rank: int, world_size: int) -> None:
    with collectives() as named:
        dtypes = [torch.float32, torch.int32]
        wrong = [
            Request("all_reduce", [torch.zeros(3 + rank)], op="sum"),
            Request("all_reduce", [torch.zeros(3, dtype=dtypes[rank])], op="sum"),
            Request("all_reduce", [torch.zeros(3)], op=["sum", "max"][rank]),
            Request("broadcast", [torch.zeros(3)], root=rank),
            Request("all_gather", [torch.zeros(3, 2 + rank)]),
            Request(["all_gather", "broadcast"][rank], [torch.zeros(3)]),
        ]
        for index, request in enumerate(wrong):
            with pytest.raises(farandole.MismatchError, match=f"'wrong{index}' do not fit"):
                named.wait(named.submit(f"wrong{index}", request))
        assert named.wait(summed(named, "wrong0", 1.0))[0].tolist() == [world_size] * 3
        if rank == 0:  # in progress until the other rank asks for it too
            first = summed(named, "twice", 1.0)
            with pytest.raises(farandole.InvalidArgument, match="operation of that name"):
                summed(named, "twice", 1.0)
        dist.barrier()
        if rank == 1:
            first = summed(named, "twice", 1.0)
        named.wait(first)


def test_requests_that_do_not_fit_together_are_errors_on_all_ranks() -> None:
    ranks.run(mismatched, 2)


def joined(rank: int, world_size: int) -> None:
    with collectives() as named:
        for _ in range(2):
            for step in range(3 + 2 * rank):
                there = [r for r in range(world_size) if step < 3 + 2 * r]
                total = named.wait(summed(named, f"step{step}", 1.0 + rank))
                assert total[0].tolist() == [sum(1.0 + r for r in there)] * 3
            if rank == world_size - 1:
                with pytest.raises(farandole.MismatchError, match="have joined"):
                    named.wait(named.submit("gathered", Request("all_gather", [torch.zeros(3)])))
            named.wait(named.join())
            assert named.last_joined == world_size - 1


def test_ranks_that_have_joined_add_zeros() -> None:
    ranks.run(joined, 3)


def stalled(rank: int, world_size: int) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("farandole").addHandler(handler)
    with collectives(Settings(stall_warning_s=0.2)) as named:
        if rank == 1:
            time.sleep(1.0)
        named.wait(summed(named, "late", 1.0))
        if rank == 0:
            assert any("'late' (ranks [1])" in line for line in lines), lines
    with collectives(Settings(stall_shutdown_s=0.4)) as named:
        if rank == 0:
            with pytest.raises(farandole.TimeoutError, match=r"'never' \(ranks \[1\]\)"):
                named.wait(summed(named, "never", 1.0))
        dist.barrier()
        if rank == 1:
            with pytest.raises(farandole.CommError):
                named.wait(summed(named, "after", 1.0))


def test_stalls_are_named_and_ended() -> None:
    ranks.run(stalled, 2)


def hanging(rank: int, world_size: int) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("farandole").addHandler(handler)
    with collectives(Settings(stall_warning_s=0.2)) as named:
        pids = named.wait(
            named.submit("pids", Request("all_gather", [torch.tensor([os.getpid()])]))
        )[0].tolist()
        if rank == 0:
            os.kill(pids[1], signal.SIGSTOP)
            threading.Timer(1.0, os.kill, (pids[1], signal.SIGCONT)).start()
        else:
            time.sleep(0.2)
        assert named.wait(summed(named, "late", 1.0))[0][0] == 2
        assert rank == 1 or any("does not answer at all" in line for line in lines), lines


def test_a_rank_whose_threads_stand_still_is_told() -> None:
    ranks.run(hanging, 2)


def in_places(rank: int, world_size: int) -> None:
    pair = NamedCollectives([0, 2])
    if rank == 1:
        with pytest.raises(farandole.InvalidArgument, match="not in the group"):
            summed(pair, "elsewhere", 1.0)
        pair.close()
        return
    assert (pair.rank, pair.world_size) == (rank // 2, 2)
    child = os.fork()
    if child == 0:
        try:
            summed(pair, "forked", 1.0)
        except farandole.InvalidArgument as error:
            os._exit(0 if "named-forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert pair.wait(summed(pair, "here", 1.0))[0][0] == 2
    dist.barrier(dist.new_group([0, 2], use_local_synchronization=True))
    pair.close()


def test_members_and_their_children() -> None:
    ranks.run(in_places, 3)


def dead(rank: int, world_size: int) -> None:
    named = NamedCollectives()
    named.wait(summed(named, "first", 1.0))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(farandole.PeerFailure, match="rank 1"):
        named.wait(summed(named, "second", 1.0))
    with pytest.raises(farandole.PeerFailure):
        summed(named, "third", 1.0)
    named.close()
    os._exit(0)  # the default group has lost a rank too


def test_a_rank_that_dies_is_named() -> None:
    ranks.run(dead, 2, may_die=(0, 1))


def closed(rank: int, world_size: int) -> None:
    named = NamedCollectives()
    if rank == 0:
        time.sleep(0.2)
        named.close()
        with pytest.raises(farandole.CommError, match="have been shut down"):
            summed(named, "after", 1.0)
    else:
        with pytest.raises(farandole.CommError):
            named.wait(summed(named, "never", 1.0))
        named.close()
    dist.barrier()
    with collectives() as again:
        assert again.wait(summed(again, "never", 1.0))[0][0] == world_size


def test_an_end_is_an_error_for_those_who_wait() -> None:
    ranks.run(closed, 2)


def many(rank: int, world_size: int) -> None:
    with collectives(Settings(capacity=8)) as named:
        for step in range(3):
            names = [f"{step % 2}.{k}" for k in range(300)]
            handles = [summed(named, name, 1.0, count=k) for k, name in enumerate(names)]
            for handle in handles:
                assert bool((named.wait(handle)[0] == world_size).all())


def test_more_names_than_are_remembered() -> None:
    ranks.run(many, 2)


def in_lockstep(world_size: int, body: Callable[[Agreement, int], None], capacity: int = 4) -> None:
    """Runs `body` on threads that exchange bytes in one process."""
    barrier = threading.Barrier(world_size, timeout=20)
    blocks = [b""] * world_size
    failures: list[BaseException] = []

    def exchange_of(rank: int) -> Callable[[bytes], list[bytes]]:
        def exchange(data: bytes) -> list[bytes]:
            blocks[rank] = data
            barrier.wait()
            everything = list(blocks)
            barrier.wait()
            return everything

        return exchange

    def enter(rank: int) -> None:
        try:
            body(Agreement(rank, world_size, exchange_of(rank), capacity), rank)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


SIGNATURE = Signature("all_reduce", "sum", 0, 1.0, 1.0, "cpu", ("torch.float32",), ((3,),), ())


def test_all_ranks_decide_the_same_in_the_same_order() -> None:
    orders: list[list[str]] = [[] for _ in range(3)]

    def body(agreement: Agreement, rank: int) -> None:
        random_numbers = random.Random(rank)
        left = [f"name{k}" for k in range(40)]
        random_numbers.shuffle(left)
        for _ in range(200):
            told = [left.pop() for _ in range(min(len(left), random_numbers.randrange(3)))]
            outcome = agreement.round([(name, SIGNATURE) for name in told])
            orders[rank] += [decision.name for decision in outcome.decisions]
        assert not agreement.waits

    in_lockstep(3, body)
    assert len(orders[0]) == 40
    assert orders[0] == orders[1] == orders[2]


def test_a_known_name_costs_a_bit() -> None:
    sizes: list[int] = []

    def body(agreement: Agreement, rank: int) -> None:
        whole = agreement._exchange

        def exchange(data: bytes) -> list[bytes]:
            if rank == 0:
                sizes.append(len(data))
            return whole(data)

        agreement._exchange = exchange
        names = [f"layer{k}.weight" for k in range(100)]
        for _ in range(3):
            outcome = agreement.round([(name, SIGNATURE) for name in names])
            assert [decision.name for decision in outcome.decisions] == names

    in_lockstep(2, body, capacity=1024)
    assert sizes[0] > 5000
    assert sizes[1:] == [18, 18]
