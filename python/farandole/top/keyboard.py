# SPDX-License-Identifier: Apache-2.0
"""Keys of the terminal, one by one and without their echo."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keys_heard() -> Iterator[None]:
    """Within, `pressed` hears keys at once. Without a terminal there are none."""
    if not sys.stdin.isatty():
        yield
        return
    settings = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def pressed(key: bytes, seconds: float) -> bool:
    """Whether this key is pressed within so many seconds."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not sys.stdin.isatty():
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0]:
            read = os.read(sys.stdin.fileno(), 1)
            if read in (key, b""):  # or the terminal is gone
                return True
    return False
