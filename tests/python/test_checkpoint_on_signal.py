# SPDX-License-Identifier: Apache-2.0
"""farandole.CheckpointOnSignal: who is told what, and whose signals they are afterwards."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import farandole
import pytest

import ranks


def test_the_request_and_the_last_checkpoint_are_told(tmp_path: Path) -> None:
    lines = ranks.run(_is_asked_and_saves, 2, str(tmp_path))
    assert lines == [
        [
            "a rank was asked to save and end: requested() is True on all ranks.",
            "CheckpointOnSignal ends the ranks with status 75; the last checkpoint is "
            f"'{tmp_path}/step-00000003'.",
        ],
        [],
    ]


def _is_asked_and_saves(rank: int, size: int, path: str) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("farandole").addHandler(handler)
    preemption = farandole.CheckpointOnSignal()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    assert preemption.requested()
    farandole.save_checkpoint(path, step=3)
    with pytest.raises(SystemExit):
        preemption.exit()
    return [line for line in lines if "group '" not in line]


@pytest.mark.parametrize("backend", ["farandole", "gloo"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_all_ranks_are_told_of_a_signal_to_one(backend: str, number: int) -> None:
    ranks.run(_is_told, 2, int(number), setup=ranks.Setup(backend=backend))


def _is_told(rank: int, size: int, number: int) -> None:
    calls: list[int] = []
    signal.signal(number, lambda met, _: calls.append(met))
    preemption = farandole.CheckpointOnSignal()
    assert not preemption.requested()
    if rank == 1:
        os.kill(os.getpid(), number)
    assert preemption.requested()
    assert preemption.requested()
    assert calls == ([number] if rank == 1 else [])
    with pytest.raises(SystemExit) as ended:
        preemption.exit()
    assert ended.value.code == 75
    preemption.close()
    os.kill(os.getpid(), number)
    assert len(calls) == (2 if rank == 1 else 1)


def test_all_ranks_are_told_of_a_file(tmp_path: Path) -> None:
    ranks.run(_is_told_by_file, 3, str(tmp_path / "ends here"))


def _is_told_by_file(rank: int, size: int, path: str) -> None:
    preemption = farandole.CheckpointOnSignal((), file=path if rank == 2 else None)
    assert not preemption.requested()
    if rank == 2:
        Path(path).touch()
    assert preemption.requested()


def test_signals_are_given_back_in_any_order() -> None:
    ranks.run(_closes_in_another_order, 1)


def _closes_in_another_order(rank: int, size: int) -> None:
    calls: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: calls.append(number))
    outer = farandole.CheckpointOnSignal()
    inner = farandole.CheckpointOnSignal()
    outer.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert inner.requested()
    assert calls == [signal.SIGUSR1]
    inner.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [signal.SIGUSR1] * 2
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)  # the default: it ends here
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_signals_that_cannot_be_handled_are_named() -> None:
    ranks.run(_refuses, 1)


def _refuses(rank: int, size: int) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    for number in (signal.SIGKILL, 0, 1000):
        with pytest.raises(farandole.InvalidArgument, match=f"got the signal {int(number)}"):
            farandole.CheckpointOnSignal([signal.SIGUSR2, number])
        assert signal.getsignal(signal.SIGUSR2) is before
    met: list[Exception] = []

    def elsewhere() -> None:
        try:
            farandole.CheckpointOnSignal()
        except farandole.Error as error:
            met.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(met[0])
