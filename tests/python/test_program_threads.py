# SPDX-License-Identifier: Apache-2.0
"""Which threads may call collectives: those of the program, and no helper of a library."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
from farandole.program_threads import may_others_call


def others_with(thread: threading.Thread, end: threading.Event) -> bool:
    before = {each.ident for each in threading.enumerate()}
    thread.start()
    try:
        own = threading.get_native_id()
        assert thread.ident not in before
        return may_others_call(own)
    finally:
        end.set()
        thread.join()


def test_a_thread_of_the_program_may() -> None:
    end = threading.Event()
    assert others_with(threading.Thread(target=lambda: end.wait()), end)


@pytest.mark.parametrize("module", ["tqdm._monitor", "torch.utils.data._utils.pin_memory"])
def test_a_thread_of_a_library_may_not(module: str) -> None:
    end = threading.Event()

    def body() -> None:
        end.wait()

    body.__module__ = module
    assert not others_with(threading.Thread(target=body), end)


def test_a_subclass_of_a_library_may_not() -> None:
    end = threading.Event()

    class Monitor(threading.Thread):
        def run(self) -> None:
            end.wait()

    Monitor.__module__ = "tqdm._monitor"
    assert not others_with(Monitor(), end)


def test_a_thread_that_feeds_a_queue_may_not() -> None:
    queue = multiprocessing.Queue()  # type: ignore[var-annotated]
    queue.put(1)
    assert not may_others_call(threading.get_native_id())
    assert queue.get() == 1
    queue.close()
    queue.join_thread()
    assert may_others_call(-1)  # the caller is another one for it


def test_a_forked_child_knows_its_main_thread() -> None:
    child = os.fork()
    if child == 0:
        os._exit(int(may_others_call(threading.get_native_id())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
