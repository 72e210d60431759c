# SPDX-License-Identifier: Apache-2.0
"""An elastic job under the monitor of `farandole run`."""

from __future__ import annotations

import dataclasses
import json

from farandole.run.console import Console
from farandole.run.cores import Division
from farandole.run.elastic.discovery import find_first_hosts
from farandole.run.elastic.service import KILL_ALL, Service
from farandole.run.elastic.settings import ElasticSettings
from farandole.run.failure import Failure
from farandole.run.job import Job
from farandole.run.loop import Loop
from farandole.run.torchrun import Torchrun


class ElasticLauncher(Torchrun):
    """The driver in a child process, in the place of torchrun's agent; outputs come the same way.

    Raises:
        SystemError: the host discovery script failed when it was called first, or named no hosts.
    """

    name = "elastic"
    death = KILL_ALL

    def __init__(
        self,
        job: Job,
        settings: ElasticSettings,
        division: Division,
        console: Console,
        loop: Loop,
    ) -> None:
        super().__init__(job, division, console, loop)
        self._settings = settings
        self._hosts = dict(settings.hosts)
        if settings.discovery_script is not None:
            self._hosts = find_first_hosts(settings.discovery_script, settings.slots_per_host)
        self._has_failed = False

    def failure(self) -> Failure | None:
        """Which workers failed, if the job did."""
        failure = super().failure() if self._has_failed else None
        # The loss of a worker does not end the others, so each may have been killed from outside.
        return failure and dataclasses.replace(failure, in_order=False)

    def _take_report(self, data: bytes) -> None:
        """Prints what the driver says, line by line."""
        *lines, self._report = (self._report + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "line" in told:
                self._console.inform(told["line"])
                continue
            self._has_failed = bool(told["statuses"])
            self._statuses = {int(number): each for number, each in told["statuses"].items()}
            if told["why"]:
                self._console.say(f"farandole run: {told['why']}")

    def _read_report(self) -> None:
        """All of it was taken."""

    def _serve(self, report: int) -> int:
        """Drives the job in the child; returns its exit status."""
        self._listener.close()
        service = Service(self._settings, self._hosts, self._socket_name, report)
        return service.run(threads=self._division.threads)
