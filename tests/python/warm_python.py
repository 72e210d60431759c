# SPDX-License-Identifier: Apache-2.0
"""A Python that starts programs in milliseconds, as it has imported torch beforehand.

`executable()` is a command to start where one would start sys.executable. It asks a server, which
has imported what takes seconds, to fork; the fork runs the program with the command's arguments,
variables, folder, input and outputs, and the command ends as it does. What the program starts as
sys.executable is as warm. What a fork cannot be like (see `can_be_forked`) runs in a new Python.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

PRELOADED = [
    *("torch", "torch._dynamo", "torch.distributed.optim", "torch.distributed.launcher.api"),
    *("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend", "farandole"),
    *("sklearn.datasets", "sklearn.model_selection"),
]
# Variables that are read when a process starts, or set by a parent that knows its children by pid.
OF_PROCESSES = ("MALLOC_", "OMPI_COMM_")
STANDARD_FILES = (0, 1, 2)
LENGTH_BYTES = 8  # of the number before a message


def can_be_forked(arguments: list[str]) -> bool:
    """Whether these run a file or, with -m, a module; code and other options do not."""
    if any(name.startswith(OF_PROCESSES) for name in os.environ):
        return False
    return bool(arguments) and (arguments[0] == "-m" or not arguments[0].startswith("-"))


def executable() -> str:
    """The command; the server starts with the first call and ends with this process."""
    return _command_and_server()[0]


def server_pid() -> int:
    """The process that programs see as their parent."""
    return _command_and_server()[1]


@functools.cache
def _command_and_server() -> tuple[str, int]:
    import subprocess
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="farandole-warm-")
    atexit.register(folder.cleanup)
    command, path = Path(folder.name) / "python", Path(folder.name) / "socket"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{__file__}' '{path}' \"$@\"\n")
    command.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(path), str(command)],
        stdin=subprocess.PIPE,  # its end tells the server to end
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    return str(command), server.pid


def main(arguments: list[str]) -> int:
    """What `executable()` runs."""
    path, *arguments = arguments
    if "-u" in arguments[:1]:
        arguments = arguments[1:]
    if not can_be_forked(arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        # Variables may hold any bytes; fsdecode() and fsencode() keep them.
        asked = json.dumps([arguments, dict(os.environ), str(Path.cwd())]).encode()
        files = array.array("i", STANDARD_FILES)
        length = len(asked).to_bytes(LENGTH_BYTES, "little")
        server.sendmsg([length], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        server.sendall(asked)
        answers = server.makefile()
        pid = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:  # the program died of a signal; so does this
        with contextlib.suppress(OSError):  # of SIGKILL, which cannot be caught
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


class Server:
    """Forks for each connection, and tells each how its fork ended."""

    def __init__(self, path: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self.forks: dict[int, tuple[socket.socket, int]] = {}  # by pidfd: who asked, and the pid

    def serve(self) -> list[str]:
        """Returns in each fork: the program and its arguments."""
        while True:
            key, _ = self.selector.select()[0]  # one at once: it may be the end of another
            if key.fileobj is self.listener:
                asked = self.fork(self.listener.accept()[0])
                if asked is not None:
                    return asked
            elif key.fd in self.forks:
                self.end(key.fd)
            elif key.fd == sys.stdin.fileno():
                self.kill_all()
                os._exit(0)
            else:  # who asked has died
                self.selector.unregister(key.fileobj)
                signal.pidfd_send_signal(key.data, signal.SIGKILL)

    def fork(self, connection: socket.socket) -> list[str] | None:
        """What is asked for, in the fork; None in the server."""
        length, files, _, _ = socket.recv_fds(connection, LENGTH_BYTES, len(STANDARD_FILES))
        left, parts = int.from_bytes(length, "little"), []
        while left:
            parts.append(connection.recv(left))
            left -= len(parts[-1]) or left
        pid = os.fork()
        if pid == 0:
            connection.close()
            self.close()
            return become(files, *json.loads(b"".join(parts)))
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):  # who asked has died; select() will tell
            connection.sendall(f"{pid}\n".encode())
        process = os.pidfd_open(pid)
        self.forks[process] = (connection, pid)
        self.selector.register(process, selectors.EVENT_READ)
        self.selector.register(connection, selectors.EVENT_READ, process)
        return None

    def end(self, process: int) -> None:
        """Tells who asked for it, if that is there still."""
        connection, pid = self.forks.pop(process)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.selector.unregister(process)
        os.close(process)
        with contextlib.suppress(KeyError, OSError):  # it has died
            self.selector.unregister(connection)
            connection.sendall(f"{code}\n".encode())
        connection.close()

    def kill_all(self) -> None:
        for process in self.forks:
            signal.pidfd_send_signal(process, signal.SIGKILL)

    def close(self) -> None:
        """In a fork, which has none of this."""
        self.selector.close()
        self.listener.close()
        for process, (connection, _) in self.forks.items():
            os.close(process)
            connection.close()


def become(
    files: list[int], arguments: list[str], environment: dict[str, str], folder: str
) -> list[str]:
    """Makes this process one that was started like that; returns the arguments."""
    for file, standard in zip(files, STANDARD_FILES, strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    first = folder if arguments[0] == "-m" else str(Path(arguments[0]).resolve().parent)
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *given, *(path for path in sys.path[1:] if path not in given)]
    import torch

    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    return arguments


def run_and_end(run: Callable[[], object]) -> None:
    """Calls `run`, and ends this process without freeing its modules, which takes 0.6 s of CPU."""
    import threading

    code = 0
    try:
        run()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as each Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()
    os._exit(code & 0xFF)


def serve(path: str, command: str) -> None:
    """Imports, then runs programs, each in a fork."""
    import gc
    import importlib
    import runpy

    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that forks do not write to it
    server = Server(path)
    print("ready", flush=True)
    arguments = server.serve()
    del server
    sys.executable = command
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    if is_module:  # a launcher
        run = functools.partial(runpy.run_module, sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        run = functools.partial(runpy.run_path, sys.argv[0], run_name="__main__")
    is_rank_0 = os.environ.get("RANK", "0") == "0"
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if not is_module and (is_rank_0 or may_restart):
        run()  # as every Python does, up to what exit() calls, which removes kept commits
    else:
        run_and_end(run)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
