# SPDX-License-Identifier: Apache-2.0
"""Starts workers: here, or by ssh on other hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from farandole import job_secret
from farandole.elastic_meeting import VARIABLE
from farandole.run.elastic.board import StoreBoard
from farandole.run.elastic.settings import ElasticSettings
from farandole.run.hosts import is_this_host
from farandole.run.passed_variables import passes_by_itself
from farandole.run.process_group import signal_group
from farandole.run.torchrun import RANK_PROGRAM

_TAKES_SECRET = f"IFS= read -r {job_secret.VARIABLE} && export {job_secret.VARIABLE}"
"""Of another host's shell: ssh's command line is seen by other users, its standard input is not."""
_WATCHED = (
    "exec 3<&0; {command} 3<&- & worker=$!; "
    "{{ cat <&3 >/dev/null; kill -TERM $worker; sleep 5; kill -KILL $worker; }} 2>/dev/null & "
    "watch=$!; exec 3<&-; wait $worker; status=$?; kill $watch 2>/dev/null; exit $status"
)
"""Of another host's shell: ends the worker when the connection of ssh ends."""


class WorkerProcess:
    """A worker, or the ssh that leads to it. It leads a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        """Its exit status; None while it runs. ssh has 128 and more for signals."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Sends a signal to it and what it has started."""
        has_ended = self._process.returncode is not None
        signal_group(self._process.pid, number, has_ended=has_ended)

    def kill(self) -> None:
        """Kills it and what it has started."""
        self.send(signal.SIGKILL)


class WorkerStarter:
    """Starts the workers of a job. Used by the main thread, whose end is theirs."""

    def __init__(self, settings: ElasticSettings, board: StoreBoard, socket_name: str) -> None:
        self._settings, self._board, self._socket_name = settings, board, socket_name

    def start(self, number: int, host: str, place: int, places: int) -> WorkerProcess:
        """Starts a worker in a place of a host that has so many of them."""
        settings = self._settings
        # Where the program looks at them before it joins, as after torchrun.
        variables = {
            **settings.variables,
            VARIABLE: f"{self._board.address}/{number}",
            "RANK": str(number),
            "WORLD_SIZE": str(max(settings.ranks, number + 1)),
            "LOCAL_RANK": str(place),
            "LOCAL_WORLD_SIZE": str(max(min(places, settings.max_ranks), place + 1)),
            "MASTER_ADDR": self._board.host,
            "MASTER_PORT": str(self._board.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_RANK": str(number),
            "HOROVOD_LOCAL_RANK": str(place),
        }
        is_here = is_this_host(host)
        command = [sys.executable, "-I", "-S", RANK_PROGRAM, "--no-bind", "--quiet"]
        command += ["--launcher", str(os.getpid())] if is_here else []
        command += ["--", *settings.command]
        outputs, errors = os.pipe(), os.pipe()
        process = subprocess.Popen(
            command if is_here else self._by_ssh(host, command, variables),
            env={**os.environ, **variables} if is_here else None,
            stdin=subprocess.DEVNULL if is_here else subprocess.PIPE,
            stdout=outputs[1],
            stderr=errors[1],
            start_new_session=True,
        )
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # ssh has ended; its status is told
                process.stdin.write(f"{job_secret.of_environment()}\n".encode())
                process.stdin.flush()
        self._hand_over([outputs[0], errors[0]], number, process.pid)
        for file in (*outputs, *errors):
            os.close(file)
        return WorkerProcess(process)

    def _by_ssh(self, host: str, command: list[str], variables: Mapping[str, str]) -> list[str]:
        settings = self._settings
        passed = {
            name: value
            for name, value in os.environ.items()
            if passes_by_itself(name) and name != job_secret.VARIABLE
        }
        texts = [shlex.quote(f"{name}={value}") for name, value in {**passed, **variables}.items()]
        line = f"env {' '.join(texts)} {shlex.join(command)}"
        watched = _WATCHED.format(command=line)
        script = f"{_TAKES_SECRET}; cd {shlex.quote(str(Path.cwd()))} && {{ {watched}; }}"
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
        options += ["-p", str(settings.ssh_port)] if settings.ssh_port else []
        options += ["-i", settings.ssh_identity_file] if settings.ssh_identity_file else []
        return ["ssh", *options, host, script]

    def _hand_over(self, files: list[int], number: int, pid: int) -> None:
        """Gives the outputs to `farandole run`, as rank.py does under torchrun."""
        with contextlib.suppress(OSError):  # an old kernel
            files = [*files, os.pidfd_open(pid)]
        hello = {"rank": number, "pid": pid, "attempt": 0}
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect("\0" + self._socket_name)
            socket.send_fds(monitor, [json.dumps(hello).encode()], files)
        for process in files[2:]:
            os.close(process)
