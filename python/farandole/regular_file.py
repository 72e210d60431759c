# SPDX-License-Identifier: Apache-2.0
"""Opens a file without waiting, where a FIFO would wait for a writer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular_file(path: Path) -> BinaryIO:
    """For reading.

    Raises:
        OSError: there is none, or a folder, a pipe or a device.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is a pipe or a device, and not a file", str(path))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
