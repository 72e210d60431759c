# SPDX-License-Identifier: Apache-2.0
"""What workers of a DataLoader do at their start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def outlive_preemption(worker: int) -> None:
    """Pass it as `worker_init_fn`: SIGTERM ends the worker only if its own rank sends it.

    Launchers and schedulers send it to all processes of a rank. The rank saves a checkpoint first,
    for which it needs its workers up to the end of the step. A rank that ends by an error sends
    SIGTERM to its workers, too, and waits for their end.
    """
    del worker
    rank = multiprocessing.parent_process()
    assert rank is not None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with, args=(rank.pid,), daemon=True).start()


def _end_with(rank: int | None) -> None:
    """Receives SIGTERM in place of the worker's other threads, which block it."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
        pass
    os._exit(0)
