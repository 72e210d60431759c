# SPDX-License-Identifier: Apache-2.0
"""How both ends of a new connection prove that they know a secret, without sending it.

The end that listens sends a nonce; the one that has connected answers with a nonce of its own and a
code of both; then the one that listens sends its code. Codes of the two ends differ, so neither can
be given back to its sender. Spark's workers get this module by value, so it imports the standard
library and job_secret alone.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable

from farandole.job_secret import code

_PURPOSE = "run_function"
_NONCE_BYTES, _CODE_BYTES = 32, 32


def admit(
    stranger: socket.socket, secret: str, patience_s: float, note: Callable[[], object]
) -> bool:
    """Of the end that listens: whether the other one has proved in time that it knows the secret.

    Args:
        stranger: The connection.
        secret: Of the job.
        patience_s: For all of it.
        note: Called once the other end has proved it, before that end can know.

    Raises:
        OSError: the other end has hung up, or was too slow.
    """
    deadline_s = time.monotonic() + patience_s
    mine = secrets.token_bytes(_NONCE_BYTES)
    _send(stranger, mine, deadline_s)
    theirs = _receive(stranger, _NONCE_BYTES, deadline_s)
    proof = _receive(stranger, _CODE_BYTES, deadline_s)
    if not hmac.compare_digest(proof, code(secret, _PURPOSE, b"caller", mine, theirs)):
        return False
    note()
    _send(stranger, code(secret, _PURPOSE, b"listener", mine, theirs), deadline_s)
    stranger.settimeout(None)
    return True


def introduce(listener: socket.socket, secret: str, patience_s: float) -> bool:
    """Of the end that has connected: whether the other one has proved it, too.

    Raises:
        OSError: the other end has hung up, or was too slow.
    """
    deadline_s = time.monotonic() + patience_s
    theirs = _receive(listener, _NONCE_BYTES, deadline_s)
    mine = secrets.token_bytes(_NONCE_BYTES)
    _send(listener, mine + code(secret, _PURPOSE, b"caller", theirs, mine), deadline_s)
    proof = _receive(listener, _CODE_BYTES, deadline_s)
    listener.settimeout(None)
    return hmac.compare_digest(proof, code(secret, _PURPOSE, b"listener", theirs, mine))


def _send(end: socket.socket, data: bytes, deadline_s: float) -> None:
    end.settimeout(_left_s(deadline_s))
    end.sendall(data)


def _receive(end: socket.socket, size: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < size:
        end.settimeout(_left_s(deadline_s))
        part = end.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the other end has hung up")
        data += part
    return data


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the other end is too slow")
    return left_s
