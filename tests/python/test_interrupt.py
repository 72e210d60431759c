# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a rank waits for others: the wait ends, and the other ranks are told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from cmake_projects import free_port

_PATIENCE_S = 60


def _interrupt_soon() -> None:
    threading.Timer(0.5 * ranks.load(), os.kill, (os.getpid(), signal.SIGINT)).start()


def _backward() -> None:
    model = farandole.DistributedDataParallel(nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    farandole.barrier()  # of both ranks
    _interrupt_soon()
    loss.backward()


def _wait_of(call: Callable[[], object]) -> Callable[[], None]:
    def body() -> None:
        farandole.barrier()
        _interrupt_soon()
        call()

    return body


WAITS: dict[str, Callable[[], None]] = {
    "all_reduce": _wait_of(lambda: farandole.all_reduce(torch.ones(4))),
    "all_reduce of torch": _wait_of(lambda: dist.all_reduce(torch.ones(4))),
    "async": _wait_of(lambda: farandole.all_reduce(torch.ones(4), async_op=True).wait()),
    "recv": _wait_of(lambda: farandole.recv(torch.ones(4), src=1)),
    "objects": _wait_of(lambda: farandole.broadcast_object_list([None], src=1)),
    "new_group": _wait_of(lambda: farandole.new_group([0, 1])),
    "backward": _backward,
}


def interrupted(rank: int, world_size: int, name: str, done: str) -> str:
    """Rank 1 calls nothing until rank 0 has given up."""
    del world_size
    if rank == 0:
        with pytest.raises(KeyboardInterrupt) as error:
            WAITS[name]()
        if name not in ("new_group", "backward"):  # those have a group of their own
            with pytest.raises(farandole.AbortedError):
                farandole.barrier()
        Path(done).touch()
        until = time.monotonic() + _PATIENCE_S * ranks.load()
        while name not in ("new_group", "backward") and not Path(done + ".told").exists():
            assert time.monotonic() < until, "rank 1 was not told"
            time.sleep(0.01)
        return str(error.value)
    model = farandole.DistributedDataParallel(nn.Linear(4, 4)) if name == "backward" else None
    farandole.barrier()
    until = time.monotonic() + _PATIENCE_S * ranks.load()
    while not Path(done).exists():
        assert time.monotonic() < until, "rank 0 still waits"
        time.sleep(0.01)
    if name in ("new_group", "backward"):  # which abort groups of their own
        with pytest.raises(farandole.CommError):  # rank 0 has ended
            farandole.barrier()
    else:
        with pytest.raises(farandole.AbortedError, match="interrupted by Ctrl-C"):
            farandole.barrier()
        Path(done + ".told").touch()
    del model  # its group lives until here
    return ""


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait_for_other_ranks(name: str, tmp_path: Path) -> None:
    told = ranks.run(interrupted, 2, name, str(tmp_path / "done"))[0]
    assert "interrupted by Ctrl-C" in told


@pytest.mark.parametrize("name", ["all_reduce", "recv"])
def test_ctrl_c_ends_a_wait_between_hosts(name: str, tmp_path: Path) -> None:
    setup = ranks.Setup(backend="hosts")
    told = ranks.run(interrupted, 2, name, str(tmp_path / "done"), setup=setup)[0]
    assert "interrupted by Ctrl-C" in told


def handled(rank: int, world_size: int) -> tuple[float, bool]:
    """The program's handler runs after the collective, which goes on."""
    del world_size
    came = []
    tensor = torch.ones(4)
    if rank == 0:
        signal.signal(signal.SIGINT, lambda *_: came.append(dist.get_rank()))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        time.sleep(1)
    farandole.all_reduce(tensor)
    until = time.monotonic() + _PATIENCE_S
    while rank == 0 and not came and time.monotonic() < until:
        time.sleep(0.01)
    farandole.all_reduce(tensor)
    return float(tensor[0]), bool(came)


def first_to_come(rank: int, world_size: int, port: int) -> None:
    """Nobody opens the store of the ranks."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="1", WORLD_SIZE="2")
    _interrupt_soon()
    with pytest.raises(KeyboardInterrupt, match="the formation of group 'default'"):
        farandole.init_process_group()


def test_ctrl_c_ends_the_wait_for_rank_0() -> None:
    ranks.run(first_to_come, 1, free_port(), setup=ranks.Setup(backend=None))


def test_a_handler_of_the_program_does_not_end_a_wait() -> None:
    assert ranks.run(handled, 2) == [(4.0, True), (4.0, False)]


def caught(rank: int, world_size: int) -> float:
    """An interrupt that Python has raised is not raised again by the next wait."""
    del world_size
    tensor = torch.ones(4)
    if rank == 0:
        _interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(_PATIENCE_S)
    else:
        time.sleep(1)
    farandole.all_reduce(tensor)
    return float(tensor[0])


def test_an_interrupt_that_was_raised_is_over() -> None:
    assert ranks.run(caught, 2) == [2.0, 2.0]


def polled(rank: int, world_size: int) -> float:
    """Another thread, which holds the GIL, asks a transfer whether it is done while one waits."""
    del world_size
    first, second = torch.ones(4), torch.ones(4)
    if rank == 1:
        time.sleep(1)
        farandole.send(torch.full((4,), 2.0), dst=0)
        farandole.send(torch.full((4,), 3.0), dst=0, tag=1)
        return 0.0
    work = dist.irecv(second, src=1, tag=1)
    assert work is not None
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            work.is_completed()

    thread = threading.Thread(target=ask)
    thread.start()
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))  # so that the wait asks Python
    farandole.recv(first, src=1)
    work.wait()
    is_over.set()
    thread.join()
    return float(first[0] + second[0])


def test_a_wait_does_not_block_a_thread_that_asks() -> None:
    assert ranks.run(polled, 2)[0] == 5.0


def interrupted_formation(rank: int, world_size: int, told: str) -> str:
    """Rank 1 gives up and lives on, as in a notebook; rank 2 does not come before rank 0 knows."""
    del world_size
    if rank == 1:
        _interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            farandole.new_group([0, 1, 2])
    until = time.monotonic() + _PATIENCE_S * ranks.load()
    while rank != 0 and not Path(told).exists():
        assert time.monotonic() < until, "rank 0 was not told"
        time.sleep(0.01)
    if rank == 0:
        with pytest.raises(farandole.AbortedError) as error:
            farandole.new_group([0, 1, 2])
        Path(told).touch()
        return str(error.value)
    return ""


def test_an_interrupt_of_a_rank_that_forms_a_group_is_told(tmp_path: Path) -> None:
    text = ranks.run(interrupted_formation, 3, str(tmp_path / "told"))[0]
    assert "rank 1" in text
    assert "interrupted by Ctrl-C" in text
