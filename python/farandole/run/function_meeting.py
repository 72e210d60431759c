# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of run_function() get the function and leave their results."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

_ADDRESS, _KEY = "FARANDOLE_FUNCTION_ADDRESS", "FARANDOLE_FUNCTION_KEY"  # variables of the ranks
_BACKLOG, _READ_BYTES = 512, 1 << 16
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
    rank: int = 0
    """At the end: ranks of an elastic job may have had another number at the start."""

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
    """At its start."""
    pid: int
    host: str
    outcome: Outcome | None = None
    """None: there is none yet, or it ended without one."""


class Listener:
    """Hears of ranks while they run, in threads of the meeting; here it does nothing."""

    def joined(self, report: Report) -> None:
        """A rank has got the function."""

    def said(self, rank: int, text: str) -> None:
        """A rank has called say()."""

    def printed(self, rank: int, stream: int, data: bytes) -> None:
        """A rank wrote to a standard stream that leads here."""

    def ended(self, report: Report) -> None:
        """A rank has ended, or hung up."""

    def exited(self, rank: int, status: int) -> None:
        """Whoever started a rank says how its process ended, as subprocess has it."""


class Meeting:
    """A socket, and a thread for each rank that has connected.

    Ranks of this host meet at a name of Linux's abstract sockets, which is gone with this process.
    Who starts a rank may connect as well, to lead its standard streams here and to tell its end.
    Threads: methods are called by the one that made it.
    """

    def __init__(
        self,
        payload: bytes,
        *,
        host: str | None = None,
        path: Sequence[str] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Give ``payload`` to each rank.

        Args:
            payload: Pickled: the function, its arguments and its keyword arguments.
            host: An address of this host that ranks of others reach; None: all are on this one.
            path: Becomes sys.path of the ranks; None: they have their own.
            listener: Hears of the ranks.
        """
        self._payload, self._path, self._listener = payload, path, listener or Listener()
        self.key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._reports: dict[int, Report] = {}  # guarded by _lock
        self._ended: list[Report] = []  # guarded by _lock; the first to end first
        self._threads: list[threading.Thread] = []  # guarded by _lock
        self._ranks: list[Connection] | None = []  # guarded by _lock; None: hang_up() was called
        if host is not None:
            self._socket = socket.create_server((host, 0), backlog=_BACKLOG)
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

    @property
    def port(self) -> int:
        """Where it listens if it has a host."""
        return int(self._address.rpartition(":")[2])

    def variables(self, host: str | None = None) -> dict[str, str]:
        """How ranks find it; they may know this host by another name."""
        address = self._address if host is None else f"{host}:{self.port}"
        return {_ADDRESS: address, _KEY: self.key.hex()}

    def hang_up(self) -> None:
        """End all ranks at once: each sees that nobody waits for its result."""
        self.close()
        with self._lock:
            ranks, self._ranks = self._ranks or [], None
            for connection in ranks:
                with _socket_of(connection) as view, contextlib.suppress(OSError):
                    view.shutdown(socket.SHUT_RDWR)

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
        with Connection(accepted.detach()) as connection, contextlib.suppress(OSError, EOFError):
            if not self._knows_key(connection):
                return
            kind, *told = connection.recv()
            if kind == "rank":
                self._serve_rank(connection, Report(*told))
            elif kind == "stream":
                self._read_stream(connection, *told)
            else:
                self._listener.exited(*told)

    def _knows_key(self, connection: Connection) -> bool:
        _set_patience(connection, _PROOF_S)
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
        except AuthenticationError:
            return False
        _set_patience(connection, 0)
        return True

    def _serve_rank(self, connection: Connection, report: Report) -> None:
        connection.send(self._path)
        connection.send_bytes(self._payload)
        with self._lock:
            if self._ranks is None:
                return
            self._ranks.append(connection)
            self._reports[report.rank] = report  # replaces that of one which is started again
        self._listener.joined(report)
        with contextlib.suppress(OSError, EOFError):
            while isinstance(received := connection.recv(), str):
                self._listener.said(report.rank, received)
            report.outcome = received
            connection.recv()  # nothing comes: the process has ended
        with self._lock:
            if self._ranks is not None:
                self._ranks.remove(connection)
            self._ended.append(report)
        self._listener.ended(report)

    def _read_stream(self, connection: Connection, rank: int, stream: int) -> None:
        while data := os.read(connection.fileno(), _READ_BYTES):
            self._listener.printed(rank, stream, data)


_of_this_rank: tuple[int, Connection] | None = None
"""The connection of this process to its meeting, and its pid: a forked child has none."""
_sending = threading.Lock()


def connect() -> Connection:
    """Of a rank: to the meeting that its variables tell, which are removed."""
    global _of_this_rank
    place, key = os.environ.pop(_ADDRESS), os.environ.pop(_KEY)
    host, _, port = place.rpartition(":")
    address = "\0" + place[1:] if place.startswith("@") else (host, int(port))
    connection: Connection = Client(address, authkey=bytes.fromhex(key))
    _of_this_rank = os.getpid(), connection
    return connection


def send(message: str | Outcome) -> bool:
    """Of a rank: a text for the listener, or at last the outcome; False if this is no rank.

    Threads: any.
    """
    if _of_this_rank is None or _of_this_rank[0] != os.getpid():
        return False
    with _sending:
        _of_this_rank[1].send(message)
    return True


def _socket_of(connection: Connection) -> socket.socket:
    """The same, for its options."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def _set_patience(connection: Connection, seconds: int) -> None:
    """How long a read waits; 0: for ever."""
    with _socket_of(connection) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
