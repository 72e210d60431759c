# SPDX-License-Identifier: Apache-2.0
"""Starts the threads of the library."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farandole.errors import SystemError, sentences


def start_thread(
    name: str, purpose: str, target: Callable[..., object], *args: object
) -> threading.Thread:
    """Start a daemon thread. ``purpose`` is what it is for.

    Raises:
        SystemError: it cannot start. Note that a thread runs after this call.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise SystemError(
            sentences(
                "system-call",
                f"starting a thread for {purpose} failed.",
                f"{error}.",
                "raise the limit of processes (ulimit -u, or the cgroup's pids.max).",
            )
        ) from error
    return thread
