# SPDX-License-Identifier: Apache-2.0
"""Where no thread can start, because the user may have no more processes."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import farandole
import pytest
from farandole.start_thread import start_thread
from torch import nn

import ranks


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """Root has no such limit, so root is another user meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    was_root = os.geteuid() == 0
    resource.setrlimit(resource.RLIMIT_NPROC, (0, before[1]))
    if was_root:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        if was_root:
            os.setresuid(0, 0, 0)
        resource.setrlimit(resource.RLIMIT_NPROC, before)


def _saves(rank: int, size: int, path: str) -> None:
    os.umask(0)
    net = nn.Linear(8, 8)
    farandole.save_checkpoint(f"{path}/of", model=net)
    with no_more_threads() if rank == 1 else contextlib.nullcontext():
        pending = farandole.save_checkpoint(f"{path}/of", model=net, asynchronous=True)
        assert pending.wait() == f"{path}/of/save-00000002"
    pending = farandole.save_checkpoint(f"{path}/of", model=net, asynchronous=True)
    assert pending.wait() == f"{path}/of/save-00000003"
    farandole.load_checkpoint(f"{path}/of/save-00000002", model=net)


def test_an_asynchronous_save_without_a_thread_is_a_save() -> None:
    with tempfile.TemporaryDirectory() as path:  # which the other user reaches
        Path(path).chmod(0o777)
        ranks.run(_saves, 2, path)


def _start(path: str) -> None:
    monitor = farandole.profiler.SystemMonitor(path)
    try:
        monitor.start()
    finally:
        monitor.stop()


def _starts(rank: int, size: int, path: str) -> None:
    with no_more_threads():
        with pytest.raises(farandole.SystemError, match="starting a thread for a test failed"):
            start_thread("test", "a test", list)
        with pytest.raises(farandole.SystemError, match="starting a thread for the monitor"):
            _start(path)
    assert not start_thread("test", "a test", list).join()
    _start(path)


def _meets(rank: int, size: int) -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    match = "starting a thread for the ranks' store failed"
    with no_more_threads(), pytest.raises(farandole.SystemError, match=match):
        farandole.init_process_group()
    farandole.init_process_group()
    farandole.destroy_process_group()


def test_a_store_whose_thread_cannot_start_is_a_typed_error() -> None:
    ranks.run(_meets, 1, setup=ranks.Setup(backend=None))


def test_threads_of_python_that_cannot_start_are_typed_errors(tmp_path: Path) -> None:
    ranks.run(_starts, 1, str(tmp_path))
