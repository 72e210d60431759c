# SPDX-License-Identifier: Apache-2.0
"""Tensors of an accelerator that are staged through host memory: the choice, and rough use."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks
import sim

STAGED = {"FARANDOLE_DEVICE_BACKEND": "staged"}
WITHOUT_NCCL = {"FARANDOLE_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}


def on_devices(
    body: Callable[[int, int], None],
    world_size: int,
    store: Path,
    env: Mapping[str, str],
    schedule: str = "lazy",
    may_die: tuple[int, ...] = (),
) -> None:
    """Runs ``body(rank, world_size)`` on processes, each of which is a rank with a device."""
    setup = ranks.Setup(backend=None, env=env)
    arguments = (_enter, world_size, body, str(store / "store"), schedule)
    ranks.run(*arguments, setup=setup, may_die=may_die)


def _enter(
    rank: int, world_size: int, body: Callable[[int, int], None], store: str, schedule: str
) -> None:
    with sim.of_rank(rank, schedule, nccl=None):
        if os.environ.get("FARANDOLE_DEVICE_BACKEND") == "different":
            os.environ["FARANDOLE_DEVICE_BACKEND"] = ["auto", "staged"][rank % 2]
        if os.environ.get("FARANDOLE_HOST_ID") == "different":
            os.environ["FARANDOLE_HOST_ID"] = f"host{rank % 2}"
            os.environ["FARANDOLE_NETWORK_INTERFACE"] = "lo"
        dist.init_process_group(
            "farandole",
            store=dist.FileStore(store, world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=30),
        )
        body(rank, world_size)
        if dist.is_initialized():
            dist.destroy_process_group()


def full(size: int, value: float) -> Tensor:
    return torch.full((size,), float(value), device="sim")


class Lines(logging.Handler):
    """The lines of farandole's log that speak of staging."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "staged" in record.getMessage():
            self.texts.append(record.getMessage())


def _automatic(rank: int, world_size: int) -> None:
    lines = Lines()
    logging.getLogger("farandole").addHandler(lines)
    for _ in range(2):
        tensor = full(3, 1)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [world_size] * 3
    expected = (
        "group 'default': tensors on sim are staged through pinned host memory: "
        "rank 0 cannot use NCCL: "
    )
    assert len(lines.texts) == (rank == 0)
    assert all(text.startswith(expected) for text in lines.texts)


@pytest.mark.parametrize("env", [{}, WITHOUT_NCCL])
def test_without_nccl_tensors_are_staged_and_one_line_says_why(
    env: dict[str, str], tmp_path: Path
) -> None:
    on_devices(_automatic, 2, tmp_path, env)


def _demanded(rank: int, world_size: int) -> None:
    with pytest.raises(farandole.NotSupported, match="FARANDOLE_NCCL_LIBRARY"):
        dist.all_reduce(full(3, 1))
    on_host = torch.ones(3)
    dist.all_reduce(on_host)
    assert on_host.tolist() == [world_size] * 3


def test_nccl_that_is_demanded_and_missing_is_an_error(tmp_path: Path) -> None:
    env = WITHOUT_NCCL | {"FARANDOLE_DEVICE_BACKEND": "nccl"}
    on_devices(_demanded, 2, tmp_path, env)


def _different(rank: int, world_size: int) -> None:
    expected = "(?s)rank 0 .* has auto, and rank 1 .* has staged"
    with pytest.raises(farandole.MismatchError, match=expected):
        dist.all_reduce(full(3, 1))
    on_host = torch.ones(3)
    dist.all_reduce(on_host)
    assert on_host.tolist() == [world_size] * 3


def test_different_choices_are_an_error_of_all_ranks(tmp_path: Path) -> None:
    on_devices(_different, 3, tmp_path, {"FARANDOLE_DEVICE_BACKEND": "different"})


def _shapes() -> list[Tensor]:
    """On the CPU, of integers that half types and sums of four ranks hold."""
    count = torch.arange(24.0)
    return [
        torch.tensor(3.0),
        torch.empty(0, 4),
        count.view(2, 3, 4).transpose(0, 2),
        count[::3],
        count.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        count.bfloat16(),
        count.half().view(4, 6)[:, 1:5],
        torch.complex(count, -count),
        count.to(torch.int8),
        count > 11,
        count.long(),
        torch.arange(16 * 2**20, dtype=torch.int32),  # 64 MiB
    ]


def _every_shape(rank: int, world_size: int) -> None:
    for on_host in _shapes():
        # As a view of the same strides.
        on_device = torch.empty_strided(
            on_host.size(), on_host.stride(), dtype=on_host.dtype, device="sim"
        ).copy_(on_host)
        gathered = [torch.empty_like(on_device) for _ in range(world_size)]
        works = [
            dist.all_reduce(on_device, async_op=True),
            dist.all_reduce(on_host, async_op=True),
            dist.all_gather(gathered, on_device, async_op=True),
        ]
        for work in works:
            assert work is not None
            work.wait()
        assert torch.equal(on_device.cpu(), on_host)
        assert all(torch.equal(each.cpu(), on_host) for each in gathered)


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_tensors_of_any_shape_and_type_are_right(schedule: str, tmp_path: Path) -> None:
    on_devices(_every_shape, 2, tmp_path, STAGED, schedule)


def _between_hosts(rank: int, world_size: int) -> None:
    _every_shape(rank, world_size)
    sent = [full(rank + peer, rank) for peer in range(world_size)]
    received = [full(rank + peer, -1) for peer in range(world_size)]
    dist.all_to_all(received, sent)
    for peer, tensor in enumerate(received):
        assert tensor.tolist() == [peer] * (rank + peer)


def test_hosts_exchange_tensors_of_devices(tmp_path: Path) -> None:
    on_devices(_between_hosts, 3, tmp_path, STAGED | {"FARANDOLE_HOST_ID": "different"})


def _many(rank: int, world_size: int) -> None:
    groups = [dist.group.WORLD, dist.new_group(list(range(world_size)))]
    tensors = [[full(100, 1) for _ in range(60)] for _ in groups]
    works = []
    for call in range(60):
        for group, own in zip(groups, tensors, strict=True):
            works.append(dist.all_reduce(own[call], group=group, async_op=True))
            works.append(dist.isend(own[call][:0], (rank + 1) % world_size, group, tag=call))
            works.append(dist.irecv(full(0, 0), (rank - 1) % world_size, group, tag=call))
    for work in works:
        assert work is not None
        work.wait()
    for own in tensors:
        for tensor in own:
            assert tensor.tolist() == [world_size] * 100


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_many_calls_of_two_groups_are_right(schedule: str, tmp_path: Path) -> None:
    on_devices(_many, 4, tmp_path, STAGED, schedule)


def _futures(rank: int, world_size: int) -> None:
    tensor = full(1000, rank)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [2 * sum(range(world_size))] * 1000


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_futures_hold_results(schedule: str, tmp_path: Path) -> None:
    on_devices(_futures, 2, tmp_path, STAGED, schedule)


def _answers(rank: int, world_size: int) -> None:
    dist.all_reduce(full(1, 1))  # the first call connects
    question, answer, thanks = full(1000, -1), full(1000, -1), full(1000, -1)

    def reply(done: torch.futures.Future[list[Tensor]]) -> list[Tensor]:
        dist.send(done.value()[0] + 1, 0)
        dist.recv(thanks, 0)
        return [thanks]

    if rank == 1:
        work = dist.irecv(question, 0)
        assert work is not None
        replied = work.get_future().then(reply)
        dist.barrier()
        assert replied.wait()[0].tolist() == [7] * 1000
    else:
        dist.barrier()
        dist.send(full(1000, 5), 1)
        dist.recv(answer, 1)
        assert answer.tolist() == [6] * 1000
        dist.send(answer + 1, 1)


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_callbacks_of_messages_may_send_and_receive(schedule: str, tmp_path: Path) -> None:
    on_devices(_answers, 2, tmp_path, STAGED, schedule)


def _threads(rank: int, world_size: int) -> None:
    second = dist.new_group(list(range(world_size)))

    def reduce(group: dist.ProcessGroup | None, value: int) -> None:
        sim.set_device(rank)
        for _ in range(30):
            tensor = full(1000, value)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [value * world_size] * 1000

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(reduce, None, 1), pool.submit(reduce, second, 5)]:
            done.result()


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_threads_may_use_a_group_each(schedule: str, tmp_path: Path) -> None:
    on_devices(_threads, 3, tmp_path, STAGED, schedule)


def _late(rank: int, world_size: int) -> None:
    tensor = full(4, 1)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    dist.all_reduce(tensor, group=group)  # the first call connects
    if rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        with pytest.raises(farandole.TimeoutError, match="rank 1"):
            work.wait()
    dist.barrier()
    assert tensor.tolist() == [world_size] * 4  # no output is written


def test_a_timeout_names_the_late_rank(tmp_path: Path) -> None:
    on_devices(_late, 2, tmp_path, STAGED)


def _killed(rank: int, world_size: int) -> None:
    tensor = full(4, 1)
    dist.all_reduce(tensor)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(farandole.PeerFailure, match="rank 1"):
        dist.recv(tensor, 1)
    with pytest.raises(farandole.PeerFailure, match="rank 1"):
        dist.all_reduce(tensor)
    dist.destroy_process_group()


def test_a_killed_rank_is_named_by_messages_and_collectives(tmp_path: Path) -> None:
    on_devices(_killed, 3, tmp_path, STAGED, may_die=(1,))


def _pending(rank: int, world_size: int) -> None:
    dist.all_reduce(full(4, 1))
    dist.barrier()
    if rank == 0:
        works = [dist.all_reduce(full(4, 1), async_op=True), dist.irecv(full(4, 1), 1)]
        dist.destroy_process_group()
        for work in works:
            assert work is not None
            with pytest.raises(farandole.CommError):
                work.wait()
        sim.take_reports()  # what was pending may still be in use


def test_a_group_ends_with_calls_pending(tmp_path: Path) -> None:
    on_devices(_pending, 2, tmp_path, STAGED)


def _exits(rank: int, world_size: int) -> None:
    dist.all_reduce(full(4, 1))
    dist.barrier()
    if rank == 0:
        dist.all_reduce(full(4, 1), async_op=True)
        dist.isend(full(2**20, 1), 1)
        raise SystemExit


def test_a_process_exits_with_calls_pending(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="SystemExit"):
        on_devices(_exits, 2, tmp_path, STAGED)


def _fails_alone(rank: int, world_size: int) -> None:
    tensor = full(4, 1)
    dist.all_reduce(tensor)
    if rank == 1:
        with pytest.raises(farandole.InvalidArgument, match="invalid-root"):
            dist.broadcast(tensor, 7, group=dist.group.WORLD)
        with pytest.raises(ValueError, match="of the program"):
            raise ValueError("of the program")
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size**2] * 4


def test_an_error_of_one_rank_leaves_the_others_waiting_for_its_next_call(tmp_path: Path) -> None:
    on_devices(_fails_alone, 2, tmp_path, STAGED)


def _forked(rank: int, world_size: int) -> None:
    tensor = full(4, 1)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size] * 4
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except farandole.CommError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size**2] * 4


def test_a_forked_child_changes_nothing(tmp_path: Path) -> None:
    on_devices(_forked, 2, tmp_path, STAGED)
