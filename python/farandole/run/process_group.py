# SPDX-License-Identifier: Apache-2.0
"""Sends signals to process groups."""

from __future__ import annotations

import contextlib
import os

from farandole.process_stat import stat_fields


def signal_group(leader: int, number: int, *, has_ended: bool) -> None:
    """Sends a signal to the process group of ``leader``, a process started by this program.

    Args:
        leader: The pid.
        number: The signal.
        has_ended: Whether the end of the leader was seen. What it has started may be left in its
            group, and then no other process gets its pid.
    """
    if not (has_ended and _runs(leader)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def _runs(pid: int) -> bool:
    """Whether a process has this pid and has not ended."""
    try:
        return stat_fields(pid)[0] not in "ZX"
    except OSError:
        return False
