# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of run_function() get the function and leave their results."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import resource
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from farandole import job_secret
from farandole.run.connecting import connect_to
from farandole.run.handshake import admit

_ADDRESS = "FARANDOLE_FUNCTION_ADDRESS"  # a variable of the ranks
_BACKLOG, _READ_BYTES = 512, 1 << 16
_PROOF_S = 10.0
"""How long who connects may take to prove that it knows the secret."""
_MOST_STRANGERS, _PART_OF_DESCRIPTORS = 128, 8
"""How many connections may not have proved it yet, and at most this part of all descriptors of the
process; one more takes the place of the oldest."""
_PAUSE_S = 0.01
"""After an error of accept(), as that there are no descriptors left."""


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
        self.secret = job_secret.make()
        self._is_closed = False
        self._lock = threading.Lock()
        self._reports: dict[int, Report] = {}  # guarded by _lock
        self._ended: list[Report] = []  # guarded by _lock; the first to end first
        self._threads: list[threading.Thread] = []  # guarded by _lock; of ranks and streams
        self._strangers: list[socket.socket] = []  # guarded by _lock; the oldest first
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
        self._is_closed = True
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
        return {_ADDRESS: address, job_secret.VARIABLE: self.secret}

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
            except OSError:
                if self._is_closed:
                    return
                self._drop_oldest()  # its descriptor may be the one that is missing
                time.sleep(_PAUSE_S)
                continue
            if not _is_of_this_user(accepted):
                accepted.close()
                continue
            with self._lock:
                is_full = len(self._strangers) >= _most_strangers()
                self._strangers.append(accepted)
            if is_full:
                self._drop_oldest()
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this process may have no more threads
                self._forget(accepted)
                accepted.close()
                time.sleep(_PAUSE_S)

    def _drop_oldest(self) -> None:
        """Ends the oldest connection that has not proved itself; its thread closes it."""
        with self._lock, contextlib.suppress(OSError):
            if self._strangers:
                self._strangers.pop(0).shutdown(socket.SHUT_RDWR)

    def _forget(self, accepted: socket.socket) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._strangers.remove(accepted)

    def _note_known(self, accepted: socket.socket) -> None:
        """From now on it is not dropped, and its thread is waited for."""
        with self._lock:
            if accepted not in self._strangers:
                raise ConnectionResetError("it was dropped")
            self._strangers.remove(accepted)
            self._threads.append(threading.current_thread())

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), accepted:
            try:
                note = functools.partial(self._note_known, accepted)
                if not admit(accepted, self.secret, _PROOF_S, note):
                    return
            finally:
                self._forget(accepted)
            with Connection(accepted.detach()) as connection:
                kind, *told = connection.recv()
                if kind == "rank":
                    self._serve_rank(connection, Report(*told))
                elif kind == "stream":
                    self._read_stream(connection, *told)
                else:
                    self._listener.exited(*told)

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
    """Of a rank: to the meeting that its variables tell."""
    global _of_this_rank
    connection = connect_to(os.environ.pop(_ADDRESS), job_secret.of_environment())
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


def _most_strangers() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limit // _PART_OF_DESCRIPTORS if limit >= 0 else _MOST_STRANGERS
    return max(1, min(_MOST_STRANGERS, most))


def _is_of_this_user(accepted: socket.socket) -> bool:
    """Whether a process of this host is this user's; those that connect by TCP may be anyone's."""
    if accepted.family != socket.AF_UNIX:
        return True
    credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())
