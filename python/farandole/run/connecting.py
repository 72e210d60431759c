# SPDX-License-Identifier: Apache-2.0
"""How ranks, and tasks of Spark, connect to the meeting of run_function().

Spark's workers get this module by value, so it imports the standard library and handshake alone.
"""

from __future__ import annotations

import contextlib
import socket
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

from farandole.run.handshake import introduce

_CONNECT_S = 60.0
"""How long to try: a meeting that many connect to at once may hang up on some."""
_PAUSE_S = 0.1


def connect_to(place: str, secret: str) -> Connection:
    """Connects to "host:port", or to "@name", one of Linux's abstract Unix sockets.

    Raises:
        OSError: no process listens there, or none has answered in time.
        AuthenticationError: the process that listens there does not know the secret.
    """
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        with contextlib.suppress(BlockingIOError):  # a Unix socket at which many wait
            end = _connected(place, deadline_s - time.monotonic())
            try:
                if not introduce(end, secret, deadline_s - time.monotonic()):
                    raise AuthenticationError(
                        f"the process that listens at {place} does not know the job's secret"
                    )
                return Connection(end.detach())
            except OSError:
                if time.monotonic() + _PAUSE_S > deadline_s:
                    raise
            finally:
                end.close()
        if time.monotonic() + _PAUSE_S > deadline_s:
            raise TimeoutError(f"too many processes are waiting to connect to {place}")
        time.sleep(_PAUSE_S)


def _connected(place: str, patience_s: float) -> socket.socket:
    if not place.startswith("@"):
        host, _, port = place.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=patience_s)
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(patience_s)
    try:
        end.connect("\0" + place[1:])
    except OSError:
        end.close()
        raise
    return end
