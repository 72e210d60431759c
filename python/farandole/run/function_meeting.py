# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of run_function() get the function and leave their results."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

_ADDRESS, _KEY = "FARANDOLE_FUNCTION_ADDRESS", "FARANDOLE_FUNCTION_KEY"  # variables of the ranks
_BACKLOG = 512
_PROOF_S = 30
"""How long who connects may take to prove that it knows the key."""


@dataclass
class Outcome:
    """How the function ended on a rank."""

    result: bytes = b""
    """Pickled."""
    error: str = ""
    """Type and text of what it raised; empty if it returned."""
    traceback: str = ""
    exception: bytes = b""
    """Pickled; empty if it cannot be."""
    is_consequence: bool = False
    """Whether it raised because another rank failed."""

    def cause(self) -> BaseException | None:
        """What was raised; None if it cannot be made here."""
        with contextlib.suppress(Exception):  # whatever its class raises
            found = pickle.loads(self.exception)
            return found if isinstance(found, BaseException) else None
        return None


@dataclass(eq=False)
class Report:
    """What is known of a rank."""

    rank: int
    pid: int
    host: str
    outcome: Outcome | None = None
    """None: there is none yet, or it ended without one."""


class Meeting:
    """A socket, and a thread for each rank that has connected.

    Ranks of this host meet at a name of Linux's abstract sockets, which is gone with this process.
    Threads: methods are called by the one that made it.
    """

    def __init__(self, payload: bytes, *, across_hosts: bool) -> None:
        """Give ``payload`` to each rank; to those of other hosts as well, or of this one alone."""
        self._payload = payload
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._reports: dict[int, Report] = {}  # guarded by _lock
        self._ended: list[Report] = []  # guarded by _lock; the first to end first
        self._threads: list[threading.Thread] = []  # guarded by _lock
        if across_hosts:
            from farandole import _C

            self._socket = socket.create_server((_C.address_of_this_host(), 0), backlog=_BACKLOG)
            self._address = "{}:{}".format(*self._socket.getsockname()[:2])
        else:
            self._address = f"@farandole-function-{secrets.token_hex(16)}"
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind("\0" + self._address[1:])
            self._socket.listen(_BACKLOG)
        threading.Thread(target=self._accept, name="farandole-function", daemon=True).start()

    def close(self) -> None:
        """Take no more ranks."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._socket.close()

    def variables(self) -> dict[str, str]:
        """How ranks find it."""
        return {_ADDRESS: self._address, _KEY: self._key.hex()}

    def reports(self, patience_s: float) -> list[Report]:
        """Those of all ranks that have connected; the first one to end first.

        All ranks have ended. Waits at most ``patience_s`` for what they have sent last.
        """
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(patience_s)
        with self._lock:
            current = [each for each in self._ended if self._reports[each.rank] is each]
            return current + [each for each in self._reports.values() if each not in current]

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            with self._lock:
                self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        with Connection(accepted.detach()) as connection:
            report = self._greet(connection)
            if report is None:
                return
            with self._lock:
                self._reports[report.rank] = report  # replaces that of one which is started again
            with contextlib.suppress(OSError, EOFError):
                report.outcome = connection.recv()
                connection.recv()  # nothing comes: the process has ended
            with self._lock:
                self._ended.append(report)

    def _greet(self, connection: Connection) -> Report | None:
        """Give a rank the function; None if it is none, or has ended meanwhile."""
        try:
            _set_patience(connection, _PROOF_S)
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            _set_patience(connection, 0)
            report = Report(*connection.recv())
            connection.send(sys.path)
            connection.send_bytes(self._payload)
        except (OSError, EOFError, AuthenticationError):
            return None
        return report


def connect() -> Connection:
    """Of a rank: to the meeting that its variables tell, which are removed."""
    place, key = os.environ.pop(_ADDRESS), os.environ.pop(_KEY)
    host, _, port = place.rpartition(":")
    address = "\0" + place[1:] if place.startswith("@") else (host, int(port))
    connection: Connection = Client(address, authkey=bytes.fromhex(key))
    return connection


def _set_patience(connection: Connection, seconds: int) -> None:
    """How long a read waits; 0: for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
