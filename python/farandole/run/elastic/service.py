# SPDX-License-Identifier: Apache-2.0
"""The process that drives an elastic job: it starts workers, and serves the store they meet in."""

from __future__ import annotations

import json
import os
import signal
import time
from types import FrameType
from typing import NoReturn

from farandole.run.child import FORWARDED
from farandole.run.elastic.board import StoreBoard
from farandole.run.elastic.discovery import Discovery
from farandole.run.elastic.driver import Driver
from farandole.run.elastic.script import Script
from farandole.run.elastic.settings import ElasticSettings
from farandole.run.elastic.workers import WorkerProcess, WorkerStarter
from farandole.run.hosts import address_for_others, are_all_here, is_this_host
from farandole.served_store import LOOPBACK

_PERIOD_S = 0.05
_ENDING_S = 30.0
"""How long workers may take to end after a signal, as under torchrun."""
KILL_ALL = signal.SIGRTMIN
"""The signal on which this process kills the script and all workers; programs use others."""


class Service:
    """One job. Used by the main thread of the process; signal handlers note signals, or kill."""

    def __init__(
        self, settings: ElasticSettings, hosts: dict[str, int], socket_name: str, report: int
    ) -> None:
        """Take the first hosts, where outputs go to, and a pipe for what is to be said."""
        self._settings, self._report = settings, report
        self._fixed = hosts
        self._board = StoreBoard(_address(settings, hosts))
        self._starter = WorkerStarter(settings, self._board, socket_name)
        self._started: list[WorkerProcess] = []
        self._signal = 0
        self._is_starting = self._is_killed = False
        self._trouble = ""
        self._discovery: Discovery | None = None
        if settings.discovery_script is not None:
            script = Script(settings.discovery_script)
            self._discovery = Discovery(script, settings.slots_per_host, hosts)

    def run(self, threads: int) -> int:
        """Runs the job to its end, with so many threads for each worker; the exit status."""
        try:
            return self._drive(threads)
        finally:
            if self._discovery is not None:
                self._discovery.end()

    def _drive(self, threads: int) -> int:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        signal.signal(KILL_ALL, self._on_kill)
        driver = Driver(self._settings, self._hosts, self._board, self._start, self._say)
        while (outcome := driver.step()) is None:
            if self._signal:
                return self._end()
            self._tell_trouble()
            time.sleep(_PERIOD_S)
        statuses = {} if outcome.succeeded else outcome.statuses
        self._tell(why=outcome.why, statuses=statuses)
        return 0 if outcome.succeeded else 1

    def _hosts(self) -> dict[str, int]:
        return self._fixed if self._discovery is None else self._discovery.hosts

    def _start(self, number: int, host: str, place: int, places: int) -> WorkerProcess:
        self._is_starting = True
        try:
            worker = self._starter.start(number, host, place, places)
            self._started.append(worker)
        finally:
            self._is_starting = False
            if self._is_killed:
                self._kill_all()
        return worker

    def _end(self) -> int:
        """Passes a signal on to all workers and waits for their end; the exit status."""
        if self._discovery is not None:
            self._discovery.end()
        for worker in self._started:
            worker.send(self._signal)
        deadline_s = time.monotonic() + _ENDING_S
        while any(worker.poll() is None for worker in self._started):
            if time.monotonic() > deadline_s:
                for worker in self._started:
                    worker.kill()
            time.sleep(_PERIOD_S)
        return 128 + self._signal

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def _on_kill(self, _number: int, _: FrameType | None) -> None:
        """Kills all, at once or when the worker that is being started is known."""
        self._is_killed = True
        if not self._is_starting:
            self._kill_all()

    def _kill_all(self) -> NoReturn:
        """Kills the host discovery script and all workers, and ends this process."""
        if self._discovery is not None:
            self._discovery.end()
        for worker in self._started:
            worker.kill()
        os._exit(128 + KILL_ALL)

    def _tell_trouble(self) -> None:
        """Says once that the host discovery script fails."""
        trouble = "" if self._discovery is None else self._discovery.trouble
        if trouble and trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble

    def _say(self, line: str) -> None:
        self._tell(line=line)

    def _tell(self, **what: object) -> None:
        os.write(self._report, json.dumps(what).encode() + b"\n")


def _address(settings: ElasticSettings, hosts: dict[str, int]) -> str:
    """At which workers reach this host: loopback, if they can be nowhere else."""
    if settings.discovery_script is None and are_all_here(hosts):
        return LOOPBACK
    here = next((host for host in hosts if is_this_host(host)), None)
    return address_for_others(here or "localhost")
