# SPDX-License-Identifier: Apache-2.0
"""The backend farandole on the simulated accelerator, as torch.distributed uses it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
import sim

pytestmark = [
    pytest.mark.parametrize("schedule", sim.SCHEDULES),
    pytest.mark.parametrize("lane", [pytest.param("nccl", marks=sim.NEEDS_NCCL), "staged"]),
]


def on_devices(
    body: Callable[..., None],
    world_size: int,
    store: Path,
    schedule: str,
    lane: str,
    may_die: tuple[int, ...] = (),
    bind: bool = False,
) -> None:
    """Runs ``body(rank, world_size)`` on processes, each of which is a rank with a device."""
    setup = ranks.Setup(backend=None, env={"FARANDOLE_DEVICE_BACKEND": lane})
    ranks.run(
        *(_enter, world_size, body, str(store / "store"), schedule, bind),
        setup=setup,
        may_die=may_die,
    )


def _enter(
    rank: int, world_size: int, body: Callable[..., None], store: str, schedule: str, bind: bool
) -> None:
    with sim.of_rank(rank, schedule):
        dist.init_process_group(
            "farandole",
            store=dist.FileStore(store, world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=30),
            device_id=torch.device("sim", rank) if bind else None,
        )
        body(rank, world_size)
        if dist.is_initialized():
            dist.destroy_process_group()


def full(size: int, value: float) -> Tensor:
    return torch.full((size,), float(value), device="sim")


def assert_holds(tensor: Tensor, value: float) -> None:
    assert tensor.cpu().tolist() == [float(value)] * tensor.numel()


def _collectives(rank: int, world_size: int) -> None:
    total = sum(range(world_size))
    tensor = full(5, rank)
    dist.all_reduce(tensor)
    assert_holds(tensor, total)
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    work.wait()
    assert_holds(tensor, total)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert_holds(tensor, total * world_size / 2)

    own, whole = full(2, rank), full(2 * world_size, -1)
    dist.all_gather_into_tensor(whole, own)
    assert whole.cpu().tolist() == [float(each) for each in range(world_size) for _ in range(2)]
    part = full(2, -1)
    dist.reduce_scatter_tensor(part, whole)
    assert_holds(part, rank * world_size)

    parts = [full(2, -1) for _ in range(world_size)]
    dist.all_gather(parts, own)
    for each in range(world_size):
        assert_holds(parts[each], each)
    dist.reduce_scatter(part, parts)
    assert_holds(part, rank * world_size)
    dist.gather(own, parts if rank == 0 else None)
    dist.scatter(part, parts if rank == 0 else None)
    assert_holds(part, rank)
    dist.reduce(own, 0)
    assert_holds(own, total if rank == 0 else rank)
    dist.broadcast(own, 0)
    assert_holds(own, total)

    received = full(world_size, -1)
    dist.all_to_all_single(received, full(world_size, rank))
    assert received.cpu().tolist() == [float(each) for each in range(world_size)]
    dist.all_to_all(parts, [full(2, rank) for _ in range(world_size)])
    for each in range(world_size):
        assert_holds(parts[each], each)

    on_host = torch.ones(3)
    dist.all_reduce(on_host)
    assert on_host.tolist() == [world_size] * 3
    dist.barrier()


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_collective_is_right(
    world_size: int, schedule: str, lane: str, tmp_path: Path
) -> None:
    on_devices(_collectives, world_size, tmp_path, schedule, lane)


def _transfers(rank: int, world_size: int) -> None:
    tensor = full(4, rank)
    dist.all_reduce(tensor)  # all ranks take part in the first call
    if rank == 0:
        dist.send(full(4, 7), 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        assert_holds(tensor, 7)
    received = full(1000, -1)
    transfers = [
        dist.P2POp(dist.isend, full(1000, rank), (rank + 1) % world_size),
        dist.P2POp(dist.irecv, received, (rank - 1) % world_size),
    ]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    assert_holds(received, (rank - 1) % world_size)

    on_host = torch.full((4,), -1)
    transfers = [
        dist.P2POp(dist.isend, torch.full((4,), rank), (rank + 1) % world_size),
        dist.P2POp(dist.irecv, on_host, (rank - 1) % world_size),
    ]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    assert on_host.tolist() == [(rank - 1) % world_size] * 4


def test_messages_arrive(schedule: str, lane: str, tmp_path: Path) -> None:
    on_devices(_transfers, 3, tmp_path, schedule, lane)


def _coalescing(rank: int, world_size: int) -> None:
    tensors = [full(3, rank), full(4, 1)]
    with dist._coalescing_manager(device=torch.device("sim", rank), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert_holds(tensors[0], 1)
    assert_holds(tensors[1], 2)
    outputs = [full(6, -1), full(8, -1)]
    with dist._coalescing_manager(device=torch.device("sim", rank)):
        for output, tensor in zip(outputs, tensors, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    assert_holds(outputs[0], 1)
    assert_holds(outputs[1], 2)


def test_coalesced_collectives_are_right(schedule: str, lane: str, tmp_path: Path) -> None:
    on_devices(_coalescing, 2, tmp_path, schedule, lane)


def _groups(rank: int, world_size: int) -> None:
    even = dist.new_group([0, 2])
    tensor = full(2, rank)
    if rank != 1:
        dist.all_reduce(tensor, group=even)
        assert_holds(tensor, 2)
    dist.all_reduce(tensor)
    assert_holds(tensor, 5)
    backend = dist.group.WORLD._get_backend(torch.device("sim"))
    assert isinstance(backend, farandole._C.ProcessGroupFarandole)
    objects: list[Any] = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(world_size)]


@pytest.mark.parametrize("bind", [False, True])
def test_groups_have_devices_of_their_own(
    bind: bool, schedule: str, lane: str, tmp_path: Path
) -> None:
    on_devices(_groups, 3, tmp_path, schedule, lane, bind=bind)


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 1))


def _train(model: nn.Module, batches: list[Tensor]) -> int:
    """Returns how often the host waited after the first two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = 0
    for step, batch in enumerate(batches):
        if step == 2:
            before = sim.host_waits()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return sim.host_waits() - before


def _ddp(rank: int, world_size: int) -> None:
    torch.manual_seed(4)
    batches = [torch.randn(4 * world_size, 8) for _ in range(5)]
    oracle = _model()
    _train(oracle, batches)
    model = nn.parallel.DistributedDataParallel(_model().to("sim"))
    own = [batch[4 * rank : 4 * rank + 4].to("sim") for batch in batches]
    waits = _train(model, own)
    if os.environ["FARANDOLE_DEVICE_BACKEND"] == "nccl":
        assert waits == 0
    for got, expected in zip(model.module.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_torchs_ddp_trains_and_nccl_lets_no_host_wait(
    schedule: str, lane: str, tmp_path: Path
) -> None:
    on_devices(_ddp, 2, tmp_path, schedule, lane)


def _own_ddp(rank: int, world_size: int) -> None:
    torch.manual_seed(1)
    batches = [torch.randn(4 * world_size, 8) for _ in range(5)]
    oracle = _model()
    _train(oracle, batches)
    model = farandole.DistributedDataParallel(_model().to("sim"))
    _train(model, [batch[4 * rank : 4 * rank + 4].to("sim") for batch in batches])
    for got, expected in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_our_ddp_trains(schedule: str, lane: str, tmp_path: Path) -> None:
    on_devices(_own_ddp, 2, tmp_path, schedule, lane)


def _death(rank: int, world_size: int) -> None:
    tensor = full(4, 1)
    dist.all_reduce(tensor)
    assert_holds(tensor, world_size)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(tensor, async_op=True)
    with pytest.raises(farandole.CommError, match="rank 1"):
        work.wait(timedelta(seconds=20))
    with pytest.raises(farandole.CommError, match="rank 1"):
        dist.all_reduce(tensor)
    sim.take_reports()
    dist.destroy_process_group()


def test_a_death_is_an_error_of_what_waits_for_it(schedule: str, lane: str, tmp_path: Path) -> None:
    on_devices(_death, 3, tmp_path, schedule, lane, may_die=(1,))
