# SPDX-License-Identifier: Apache-2.0
"""Watches a run from its start to its end: output, signals, and the launcher's end."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Protocol

from farandole import job_secret
from farandole.errors import InvalidArgument, sentences
from farandole.run import cores
from farandole.run.child import FORWARDED
from farandole.run.console import Console
from farandole.run.elastic.launcher import ElasticLauncher
from farandole.run.failure import Failure, describe, report, shell_status, signal_name
from farandole.run.job import Job
from farandole.run.loop import Loop
from farandole.run.mpirun import Mpirun
from farandole.run.torchrun import Torchrun

_PATIENCE_S = 3
"""After ranks were killed: how long to print what they wrote, where nobody may read it."""
_FOR_PROGRAMS = (signal.SIGUSR1, signal.SIGUSR2)
"""Passed on to ranks, which may save a checkpoint."""


class Launcher(Protocol):
    """What the monitor asks of torchrun and mpirun."""

    name: str
    pid: int

    def start(self) -> None:
        """Starts it as a child process."""

    def end(self, number: int) -> None:
        """Passes on a signal that ends the run."""

    def kill(self) -> None:
        """Kills it and the ranks."""

    def kill_left(self) -> None:
        """Kills what ranks have left behind."""

    def pass_on(self, number: int) -> None:
        """Passes on a signal for the program."""

    def failure(self) -> Failure | None:
        """Which ranks failed, once it has ended; None if none did."""


def run(job: Job) -> int:
    """Runs the job; returns the exit status of the command."""
    _open_standard_streams()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the caller may have blocked some
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no status can be read
    console = Console(
        prefix=job.prefix,
        folder=_make(job.output_folder),
        quiet=job.quiet,
        timestamps=job.timestamps,
        split_digits=len(str(job.world_size - 1)) if job.split_output else None,
    )
    for note in job.notes:
        console.inform(note)
    os.environ.update(job.variables)
    if job.nodes is None or job.nodes.count == 1:  # else hosts would have different ones
        job_secret.provide(os.environ)
    loop = Loop()
    launcher: Launcher
    count = (
        f"{job.ranks} rank{'s' * (job.ranks > 1)}{' (one for each core)' * job.ranks_by_default}"
    )
    if job.elastic is not None:
        division = cores.divide_this_host(job.ranks)
        launcher = ElasticLauncher(job, job.elastic, division, console, loop)
        numbers = f"{job.elastic.min_ranks} to {job.elastic.max_ranks}"
        console.inform(f"{numbers} ranks, {job.elastic.ranks} at first, not bound to cores")
    elif job.placed:
        launcher = Mpirun(job, console, loop)
        hosts = ", ".join(f"{ranks} on {name}" for name, ranks in job.placed.items())
        console.inform(f"{count} started by mpirun, {hosts}")
    else:
        division = cores.divide_this_host(job.ranks)
        launcher = Torchrun(job, division, console, loop)
        threads = os.environ.get("OMP_NUM_THREADS")
        text = cores.describe(division, job.ranks, bind=job.bind, threads=threads)
        here = f" on host {job.nodes.rank} of {job.nodes.count}" if job.nodes else ""
        console.inform(f"{count}{here} started by torchrun; {text}")
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is a launcher to pass it on to
    return Monitor(job, launcher, console, loop).run()


class Monitor:
    """One run. Signal handlers change it between two statements of the main thread."""

    def __init__(self, job: Job, launcher: Launcher, console: Console, loop: Loop) -> None:
        self._job, self._launcher, self._console, self._loop = job, launcher, console, loop
        self._ending: int | None = None  # the signal that ends the run
        self._told = False
        self._status: int | None = None  # of the launcher, once it has ended

    def run(self) -> int:
        """Returns the exit status of the command."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch_stream(reading, lambda _: None, lambda: None)
        self._start()
        while not self._has_ended():
            self._tell_ending()
            self._loop.turn()
            if self._console.closed and self._ending is None:
                self._ending = signal.SIGPIPE
                self._launcher.end(signal.SIGTERM)
        if self._status != 0 or self._ending is not None:
            self._launcher.kill_left()
        self._loop.drain()
        self._console.end_all()
        return self._conclude()

    def _start(self) -> None:
        """Starts the launcher; signals that come meanwhile are kept until it can be told."""
        signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, *_FOR_PROGRAMS))
        self._launcher.start()
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup and the shell's & ignore some
                signal.signal(number, self._on_end_signal)
        for number in _FOR_PROGRAMS:
            signal.signal(number, self._on_program_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*FORWARDED, *_FOR_PROGRAMS))

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._launcher.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def _conclude(self) -> int:
        """Says how the run ended, unless all went well."""
        if self._ending is not None:
            self._console.inform(f"ended by {signal_name(self._ending)}; no rank is left")
            return 128 + self._ending
        failure = self._launcher.failure()
        if failure is not None:
            return report(failure, self._job.world_size, self._console)
        assert self._status is not None
        if self._status != 0:
            what = f"{self._launcher.name} itself failed: {describe(self._status)}"
            self._console.say(f"farandole run: {what}; its lines above say why.")
        return shell_status(self._status)

    def _on_end_signal(self, number: int, _: FrameType | None) -> None:
        """The first ends the run in order; the same once more kills it."""
        if self._ending is None:
            self._ending = number
            self._launcher.end(number)
        elif self._ending == number:
            self._launcher.kill()
            signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
            signal.alarm(_PATIENCE_S)

    def _on_program_signal(self, number: int, _: FrameType | None) -> None:
        self._launcher.pass_on(number)

    def _tell_ending(self) -> None:
        if self._ending is not None and not self._told:
            self._told = True
            again = "Ctrl-C" if self._ending == signal.SIGINT else signal_name(self._ending)
            if not self._console.closed:
                self._console.inform(
                    f"{signal_name(self._ending)} was passed on to all ranks; {again} once more "
                    "kills them"
                )


def _open_standard_streams() -> None:
    """Opens those that the shell closed, so that no pipe takes their numbers."""
    for file in (0, 1, 2):
        try:
            os.fstat(file)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _make(folder: Path | None) -> Path | None:
    """Makes the folder of --output-dir.

    Raises:
        InvalidArgument: it cannot be made.
    """
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InvalidArgument(
            sentences(
                "output-folder",
                f"--output-dir {folder} cannot be used.",
                f"{error.strerror}: {error.filename}.",
                "pass a folder in which files can be made.",
            )
        ) from error
    return folder
