# SPDX-License-Identifier: Apache-2.0
"""A task of a barrier stage: one rank, in a process of its own.

Spark's workers get this module by value, and it imports the standard library and pyspark alone: a
worker serves other jobs too, so it imports neither torch nor Farandole. The rank does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from farandole.run.connecting import connect_to
from farandole.spark.places import host_of, variables_of

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

OUT, ERR = 1, 2
"""The standard streams of a rank."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """What the ranks of a job have in common. Spark calls it in each task."""

    program: str
    """A module: what each rank runs."""
    python: str | None
    """That runs it; None: the one of Spark's worker."""
    variables: Mapping[str, str]
    """For the ranks, beside those of the worker."""
    driver: str
    """Where ranks and their streams connect to: "host:port"."""
    secret: str
    """Of the job."""
    shows_output: bool
    """Whether the driver gets what ranks print; otherwise it goes to the executor's log."""

    def __call__(self, rank: int, _: Iterable[Any]) -> Iterable[None]:
        """Yields nothing; returns when the rank's process has ended.

        It ends by itself, when the driver hangs up, or with the worker, which Spark may kill.
        """
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        variables = {**os.environ, **self.variables, **_meet(context, rank)}
        variables["PYTHONPATH"] = os.pathsep.join(_module_folders())
        with contextlib.ExitStack() as stack:
            out, err = (self._stream(stack, rank, stream) for stream in (OUT, ERR))
            process = subprocess.Popen(
                [self.python or sys.executable, "-m", self.program],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_end_with_the_worker,
            )
        try:
            status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started and left behind
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, EOFError):  # it has hung up, and knows why
            self._connect("exit", rank, status).close()
        return []

    def _stream(self, stack: contextlib.ExitStack, rank: int, stream: int) -> int:
        """A descriptor for what the rank prints: the kernel delivers it even if the rank dies."""
        if not self.shows_output:
            return sys.stderr.fileno()
        return stack.enter_context(self._connect("stream", rank, stream)).fileno()

    def _connect(self, *hello: object) -> Connection:
        connection = connect_to(self.driver, self.secret)
        connection.send(hello)
        return connection


def _end_with_the_worker() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _meet(context: BarrierTaskContext, rank: int) -> dict[str, str]:
    """The variables that a launcher would set; waits for all tasks."""
    hosts = [host_of(each.address) for each in context.getTaskInfos()]
    gpu = context.resources().get("gpu")
    with socket.socket() as probe:
        probe.bind(("", 0))
        mine = json.dumps((probe.getsockname()[1], gpu.addresses if gpu else []))
        told = [json.loads(each) for each in context.allGather(mine)]
    return variables_of(rank, hosts, [gpus for _, gpus in told], port=told[0][0])


def _module_folders() -> list[str]:
    """Those of PYTHONPATH, and before them what sc.addPyFile() has brought."""
    from pyspark import SparkFiles

    root = SparkFiles.getRootDirectory()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*(folder for folder in sys.path if folder.startswith(root)), *filter(None, given)]
