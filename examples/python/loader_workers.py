# SPDX-License-Identifier: Apache-2.0
"""What workers of a DataLoader do at their start."""

from __future__ import annotations

import signal


def outlive_preemption(worker: int) -> None:
    """Pass it as `worker_init_fn`: SIGTERM does not end the worker.

    Launchers and schedulers send it to all processes of a rank. The rank saves a checkpoint first,
    for which it needs its workers up to the end of the step; when it ends, they end.
    """
    del worker
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
