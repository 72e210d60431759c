# SPDX-License-Identifier: Apache-2.0
"""Reads /proc/<pid>/stat (proc(5))."""

from __future__ import annotations

from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """The fields behind the program's name, from the state on: field 3 of proc(5) is the first.

    Raises:
        OSError: no process has this pid.
    """
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
