# SPDX-License-Identifier: Apache-2.0
"""Collectives that are not run but told the time of."""

from __future__ import annotations

import time
from collections.abc import Callable

import farandole
import pytest
import torch
import torch.distributed as dist

import ranks


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def estimated(call: Callable[[], object]) -> float:
    with dist._time_estimator() as estimate:
        call()
    assert estimate.estimated_time is not None
    return float(estimate.estimated_time)


def every_kind(rank: int, world_size: int) -> None:
    ones = torch.ones(world_size * 1000)
    part = torch.full((1000,), -1.0)
    strided = torch.zeros(1000, 2)[:, 0]
    peer = (rank + 1) % world_size
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(ones),
        lambda: dist.all_reduce(ones, async_op=True).wait(),
        lambda: dist.all_reduce(torch.eye(4).to_sparse()),
        lambda: dist.all_reduce_coalesced([ones, ones]),
        lambda: dist.broadcast(strided, src=0),
        lambda: dist.reduce(ones, dst=0),
        lambda: dist.all_gather_into_tensor(ones, part),
        lambda: dist.all_gather([part] * world_size, ones[:1000]),
        lambda: dist.reduce_scatter_tensor(part, ones),
        lambda: dist.reduce_scatter(strided, [ones[:1000]] * world_size),
        lambda: dist.all_to_all_single(torch.empty_like(ones), ones),
        lambda: dist.gather(part, [part] * world_size if rank == 0 else None, dst=0),
        lambda: dist.scatter(part, [part] * world_size if rank == 0 else None, src=0),
        lambda: dist.barrier(),
        lambda: farandole.monitored_barrier(),
        lambda: farandole.send(part, peer),  # nobody receives it
        lambda: farandole.recv(part, peer),
        lambda: farandole.recv(part),
    ]
    for call in calls:
        assert estimated(call) > 0
    assert torch.equal(ones, torch.ones(world_size * 1000))
    assert torch.equal(part, torch.full((1000,), -1.0))
    assert torch.equal(strided, torch.zeros(1000))
    with dist._time_estimator() as estimate:
        assert farandole.symmetric_empty(3).numel() == 3  # memory is made all the same
    assert estimate.estimated_time == 0
    dist.all_reduce(ones)  # runs again
    assert torch.equal(ones, torch.full_like(ones, world_size))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_nothing_is_run(world_size: int) -> None:
    ranks.run(every_kind, world_size)


def compared(rank: int, world_size: int) -> tuple[float, float, float]:
    del rank, world_size
    tensor = torch.ones(2_000_000)
    small, large = torch.ones(10), torch.ones(20_000_000)
    guess = estimated(lambda: dist.all_reduce(tensor))
    assert estimated(lambda: dist.all_reduce(small)) < guess
    assert guess < estimated(lambda: dist.all_reduce(large))
    twice = estimated(lambda: (dist.all_reduce(tensor), dist.all_reduce(tensor)))
    assert abs(twice - 2 * guess) < 1e-3 * guess
    times = []
    for _ in range(9):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        times.append((time.perf_counter() - begin) * 1e6)
    return guess, min(times), twice  # the others wait for cores


def test_an_estimate_is_of_the_order_of_the_truth() -> None:
    for guess, truth, _ in ranks.run(compared, 2):
        assert truth / 10 < guess < truth * 10


def misused(rank: int, world_size: int) -> None:
    del world_size
    with pytest.raises(farandole.InvalidArgument, match="without a start"):
        backend()._end_time_estimate()
    with pytest.raises(farandole.InvalidArgument, match="single-element"):
        estimated(lambda: dist.group.WORLD.allreduce([torch.ones(1), torch.ones(1)]))
    if rank == 0:  # one that was left by an error is begun anew, by this rank alone
        estimated(lambda: dist.barrier())
    else:
        backend()._end_time_estimate()
    dist.barrier()


def test_estimates_begin_and_end() -> None:
    ranks.run(misused, 2)
