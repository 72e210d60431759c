# SPDX-License-Identifier: Apache-2.0
"""Ranks on this host, started by torch's elastic launcher."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import resource
import secrets
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import InvalidArgument, sentences
from farandole.process_stat import stat_fields
from farandole.run.child import start_child
from farandole.run.console import ERR, OUT, Console
from farandole.run.cores import Division
from farandole.run.failure import Failure, describe_cause
from farandole.run.job import Job
from farandole.run.loop import Loop
from farandole.run.process_group import signal_group
from farandole.run.rendezvous import BACKEND, register_rendezvous

RANK_PROGRAM = str(Path(__file__).with_name("rank.py"))
_QUIETER_LOGGERS = {"multiprocessing.api": logging.CRITICAL, "agent.server.api": logging.ERROR}
"""Of torchrun; they log each signal and each failed rank, which `farandole run` reports itself."""
_HELLO_S = 10.0
_HELLO_BYTES = 4096
_FILES, _FILES_OF_A_RANK = 64, 4
"""How many files this process has open at most."""
_FILES_OF_AGENT = 32
"""How many more files the agent needs to start. With fewer, torch waits for minutes or aborts."""


@dataclass
class _Rank:
    """A running or ended rank of this host."""

    pid: int
    attempt: int


class Torchrun:
    """The elastic agent, in a child process that is forked so that torch is imported once.

    Ranks run `rank.py`, which passes the reading ends of its outputs through a socket. Used by one
    thread; `end`, `kill` and `pass_on` also by its signal handlers.
    """

    name = "torchrun"
    death = signal.SIGKILL
    """The signal that the agent gets from kill(), and if this process dies."""

    def __init__(self, job: Job, division: Division, console: Console, loop: Loop) -> None:
        self._job, self._division, self._console, self._loop = job, division, console, loop
        self._ranks: dict[int, _Rank] = {}
        # Ranks of the current attempt, the first to end first, with their statuses if known.
        self._ended: dict[int, int | None] = {}
        self._statuses: dict[int, int] = {}  # of failed ranks, as the agent reports them
        self._report = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._socket_name = f"farandole-run-{secrets.token_hex(16)}"
        self.pid = 0

    def start(self) -> None:
        """Forks the agent."""
        self._listener.bind("\0" + self._socket_name)
        self._listener.listen(512)
        self._loop.watch(self._listener.fileno(), self._meet_rank)
        self._check_files_left()
        outputs, errors, report = os.pipe(), os.pipe(), os.pipe()
        body = functools.partial(self._serve, report[1])
        self.pid = start_child(body, (outputs[1], errors[1]), self.death)
        for pipe, stream in ((outputs, OUT), (errors, ERR)):
            os.close(pipe[1])
            self._relay(pipe[0], self.name, stream)
        os.close(report[1])
        _raise_limit_of_files(self._job.ranks)  # of this process; ranks keep theirs
        self._loop.watch_stream(report[0], self._take_report, self._read_report)

    def end(self, number: int) -> None:
        """Passes on the first signal that ends the run; torchrun gives ranks 30 s to obey it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the agent, then the ranks and what they started."""
        self.end(self.death)
        self.kill_left()

    def kill_left(self) -> None:
        """Kills what ranks have started and left behind; torchrun gave each a process group."""
        for number, rank in list(self._ranks.items()):
            signal_group(rank.pid, signal.SIGKILL, has_ended=number in self._ended)

    def pass_on(self, number: int) -> None:
        """Sends a signal to each running rank, where the program may handle it."""
        for number_of_rank, rank in list(self._ranks.items()):
            if number_of_rank not in self._ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, number)

    def failure(self) -> Failure | None:
        """Which ranks failed; known when the agent has ended."""
        order = [*self._ended, *self._statuses]  # where no end was seen, torchrun's order
        statuses = {rank: self._statuses[rank] for rank in order if rank in self._statuses}
        if not statuses:
            return None
        pids = {rank: each.pid for rank, each in self._ranks.items()}
        return Failure(
            statuses,
            pids,
            dict.fromkeys(pids, socket.gethostname()),
            finished=frozenset(self._ended.keys() - statuses.keys()),
            in_order=statuses.keys() <= self._ended.keys(),
            sees_all=self._job.nodes is None,
        )

    def _meet_rank(self) -> None:
        """Accepts a rank that hands over its outputs; strangers are turned away."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise self._too_few_files() from error
        with connection:
            connection.settimeout(_HELLO_S)
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            if struct.unpack("3i", credentials)[1] != os.getuid():
                return
            try:
                text, files, _, _ = socket.recv_fds(connection, _HELLO_BYTES, 3)
                hello = json.loads(text)
            except (OSError, ValueError):
                return
        rank = hello["rank"]
        if len(files) < 2:
            raise self._too_few_files()
        known = self._ranks.get(rank)
        if known and known.attempt < hello["attempt"]:
            self._tell_restart(hello["attempt"])
        self._ranks[rank] = _Rank(hello["pid"], hello["attempt"])
        self._relay(files[0], str(rank), OUT)
        self._relay(files[1], str(rank), ERR)
        if len(files) > 2:
            self._loop.watch(
                files[2], functools.partial(self._note_end, rank, hello["pid"], files[2])
            )

    def _check_files_left(self) -> None:
        """Checks that the agent, which inherits the limit of this process, can open its files."""
        with contextlib.ExitStack() as opened:
            try:
                for _ in range(_FILES_OF_AGENT):
                    opened.callback(os.close, os.dup(ERR))
            except OSError as error:
                raise InvalidArgument(
                    sentences(
                        "run-open-files",
                        f"farandole run cannot start {self._job.ranks} ranks.",
                        f"it needs {_FILES_OF_AGENT} more open files, which its limit (ulimit -n) "
                        "does not allow.",
                        "raise that limit, for example with ulimit -n 1024.",
                    )
                ) from error

    def _too_few_files(self) -> InvalidArgument:
        return InvalidArgument(
            sentences(
                "run-open-files",
                f"farandole run cannot read the output of all {self._job.ranks} ranks.",
                "they need more open files than a process may have (ulimit -Hn).",
                "raise that limit, or start fewer ranks.",
            )
        )

    def _note_end(self, rank: int, pid: int, process: int) -> None:
        self._loop.forget(process)
        if self._ranks[rank].pid == pid:  # else it has been started again
            self._ended[rank] = exit_status_of(pid)

    def _tell_restart(self, attempt: int) -> None:
        """Says once for all ranks that they start again, and why."""
        if not self._ended:
            return  # said already
        self._console.inform(
            f"a rank failed ({describe_cause(self._ended, self._console)}); torchrun starts all "
            f"ranks again, restart {attempt} of {self._job.max_restarts}"
        )
        for rank in self._ended:
            self._console.forget(str(rank))
        self._ended.clear()

    def _relay(self, file: int, source: str, stream: int) -> None:
        self._loop.watch_stream(
            file,
            functools.partial(self._console.feed, source, stream),
            functools.partial(self._console.end, source, stream),
        )

    def _take_report(self, data: bytes) -> None:
        self._report += data

    def _read_report(self) -> None:
        if self._report:
            statuses = json.loads(self._report)
            self._statuses = {int(rank): status for rank, status in statuses.items()}

    def _arguments(self) -> list[str]:
        """Of torchrun, which this process runs."""
        nodes = self._job.nodes
        found = ["--no-python", f"--nproc-per-node={self._job.ranks}", f"--log-dir={os.devnull}"]
        found.append(f"--max-restarts={self._job.max_restarts}")
        if nodes is None:
            found += [f"--rdzv-backend={BACKEND}", "--rdzv-endpoint=here"]
            found += [f"--rdzv-id={secrets.token_hex(8)}"]
        else:
            found += [f"--nnodes={nodes.count}", f"--node-rank={nodes.rank}"]
            found += [f"--master-addr={nodes.master_address}", f"--master-port={nodes.master_port}"]
        found += [sys.executable, "-I", "-S", RANK_PROGRAM]
        found += ["--socket", self._socket_name, "--quiet", "--launcher", str(os.getpid())]
        if not self._job.bind:
            found.append("--no-bind")
        own = [] if self._job.folder is None else ["--folder", str(self._job.folder)]
        # torchrun replaces ${local_rank} in arguments, and $$ by $.
        return [*found, *(text.replace("$", "$$") for text in [*own, "--", *self._job.command])]

    def _serve(self, report: int) -> int:
        """Runs torchrun in the child; returns its exit status."""
        import torch.distributed.run as torchrun
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        self._listener.close()
        register_rendezvous()
        os.environ.setdefault("OMP_NUM_THREADS", str(self._division.threads))
        for name, level in _QUIETER_LOGGERS.items():
            logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(level)
        try:
            torchrun.run(torchrun.parse_args(self._arguments()))  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            statuses = {rank: failed.exitcode for rank, failed in error.failures.items()}
            os.write(report, json.dumps(statuses).encode())
            return 1
        except SignalException as error:
            return 128 + error.sigval
        return 0


def _raise_limit_of_files(ranks: int) -> None:
    """Lets this process open a few files for each rank, if the hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES + _FILES_OF_A_RANK * ranks
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft not in (resource.RLIM_INFINITY, hard) and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def exit_status_of(pid: int) -> int | None:
    """That of a process which has ended and which torchrun has not asked for yet; else None."""
    try:
        fields = stat_fields(pid)
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None
    except (OSError, ValueError, IndexError):
        return None
