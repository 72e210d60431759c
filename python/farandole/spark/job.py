# SPDX-License-Identifier: Apache-2.0
"""Runs a function in the tasks of a barrier stage, each of which is a rank."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import queue
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from farandole import job_secret
from farandole.errors import TimeoutError, sentences
from farandole.run import connecting, handshake
from farandole.run.failure import describe
from farandole.run.function import PROGRAM, RankError, died, pickled, results_of
from farandole.run.function_meeting import Listener, Meeting, Report
from farandole.spark import arguments, places
from farandole.spark import task as task_module
from farandole.spark.job_end import cancelled, not_run, says_cancelled
from farandole.spark.output import Output
from farandole.spark.slots import active_context, slots_of, wait_for_slots
from farandole.spark.task import Task

if TYPE_CHECKING:
    from pyspark import SparkContext

_PASSED_VARIABLES = ("FARANDOLE_", "HOROVOD_")
"""Beginnings of names: ranks get these variables of the driver."""
_BY_VALUE = (places, task_module, job_secret, handshake, connecting)
"""Modules that Spark's workers need not have."""
_CAUSE_S = 2.0
"""How long the rank that failed first is waited for when others failed because of it."""
_PATIENCE_S = 5.0
"""How long ranks may take to end when they were told to, and Spark when it was."""


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    start_timeout_s: float = 600.0,
    variables: Mapping[str, str] | None = None,
    python: str | None = None,
    shows_output: bool = True,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
) -> list[Any]:
    """Call ``function(*args, **kwargs)`` on each rank of a Spark job; the results, by rank.

    A barrier stage starts all ranks together; rank r is the task of partition r. Each runs in a
    process of its own with the variables of torchrun, so farandole.init_process_group() meets the
    others. Function, arguments and results travel by cloudpickle. If a rank fails, all are ended at
    once, and the job is not tried again.

    Args:
        function: What each rank calls, in its main thread.
        args: Of it.
        kwargs: Of it.
        num_proc: How many ranks; None: as many as the cluster has slots for tasks.
        start_timeout_s: How long, in seconds, slots and ranks are waited for.
        variables: For the ranks, beside those of the executors. They also get those of this process
            whose names begin with FARANDOLE_ or HOROVOD_.
        python: Of the ranks, if it is not that of Spark's workers.
        shows_output: Whether this program prints what ranks do, each line after its rank; otherwise
            it is in the logs of the executors.
        stdout: A text stream for their standard output; None: sys.stdout.
        stderr: A text stream for their standard error; None: sys.stderr.

    Raises:
        RankError: a rank raised or died. Its cause is what was raised, if it can be pickled.
        InvalidArgument: an argument is wrong, there is no session, there are too few slots, or the
            function cannot be pickled.
        NotSupported: pyspark or cloudpickle is missing, or the session is one of Spark Connect.
        SystemError: Spark could not run the tasks, or they were cancelled.
        TimeoutError: not all ranks have started in time.

    Threads: any, on the driver; calls may run at the same time if there are slots for both.
    """
    arguments.check_function(function)
    arguments.check_args(args)
    arguments.check_kwargs(kwargs)
    arguments.check_num_proc(num_proc)
    arguments.check_seconds("start_timeout_s", start_timeout_s)
    arguments.check_variables("variables", variables)
    arguments.check_python("python", python)
    context = active_context()
    payload = pickled(function, tuple(args), dict(kwargs or {}))
    deadline_s = time.monotonic() + start_timeout_s
    count = max(slots_of(context), 1) if num_proc is None else num_proc
    wait_for_slots(context, count, deadline_s)
    job = _Job(context, count, Output(stdout or sys.stdout, stderr or sys.stderr))
    configuration = context.getConf()
    address = str(configuration.get("spark.driver.host"))
    bound = str(configuration.get("spark.driver.bindAddress", address))
    with contextlib.closing(Meeting(payload, host=bound, listener=job)) as meeting:
        task = Task(
            program=PROGRAM,
            python=python,
            variables={**_passed(), **(variables or {}), **meeting.variables(address)},
            driver=f"{address}:{meeting.port}",
            secret=meeting.secret,
            shows_output=shows_output,
        )
        return job.run(task, meeting, start_timeout_s, deadline_s)


def _passed() -> dict[str, str]:
    """FARANDOLE_HOST_ID names one host, so others must not get it."""
    names = [name for name in os.environ if name.startswith(_PASSED_VARIABLES)]
    return {name: os.environ[name] for name in names if name != "FARANDOLE_HOST_ID"}


class _Job(Listener):
    """One run. Threads of the meeting and of Spark put calls into a queue; run() makes them."""

    def __init__(self, context: SparkContext, count: int, output: Output) -> None:
        self._context, self._count, self._output = context, count, output
        self._group = f"farandole-{secrets.token_hex(8)}"
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._joined: set[int] = set()
        self._failed: list[Report] = []
        self._statuses: dict[int, int] = {}  # of processes that have ended
        self._spark_has_ended = False
        self._spark_error: Exception | None = None

    def joined(self, report: Report) -> None:
        self._calls.put(functools.partial(self._joined.add, report.rank))

    def said(self, rank: int, text: str) -> None:
        del rank
        self._calls.put(functools.partial(self._output.say, text))

    def printed(self, rank: int, stream: int, data: bytes) -> None:
        self._calls.put(functools.partial(self._output.feed, rank, stream, data))

    def ended(self, report: Report) -> None:
        if report.outcome is None or report.outcome.error:
            self._calls.put(functools.partial(self._failed.append, report))

    def exited(self, rank: int, status: int) -> None:
        self._calls.put(functools.partial(self._statuses.__setitem__, rank, status))

    def run(
        self, task: Task, meeting: Meeting, start_timeout_s: float, deadline_s: float
    ) -> list[Any]:
        """The results, by rank."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._submit, args=(task,), daemon=True)
        thread.start()
        try:
            self._serve(lambda: len(self._joined) == self._count or self._has_failure(), deadline_s)
            is_late = len(self._joined) < self._count
            if is_late and not self._has_failure() and not self._spark_has_ended:
                raise self._late(start_timeout_s, task)
            self._serve(self._has_failure)
            self._serve(self._knows_cause, time.monotonic() + _CAUSE_S)
            # Spark tells that before the ends of ranks, which are killed then.
            is_cancelled = self._spark_has_ended and says_cancelled(self._spark_error)
        finally:
            failed = None if self._spark_has_ended else list(self._failed)
            self._end(meeting)
            thread.join(_PATIENCE_S)
            reports = meeting.reports(_PATIENCE_S)
            self._serve_rest()
        reports = reports if failed is None else failed
        if is_cancelled and not any(map(_failed_by_itself, reports)):
            raise cancelled(self._count, self._spark_error) from self._spark_error
        return self._results(reports, task)

    def _submit(self, task: Task) -> None:
        """Waits for Spark, in a thread of its own."""
        cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
        context, error = self._context, None
        for module in _BY_VALUE:
            cloudpickle.register_pickle_by_value(module)
        try:
            context.setJobGroup(self._group, "farandole.spark.run()", interruptOnCancel=True)
            ranks = context.parallelize(range(self._count), self._count)
            ranks.barrier().mapPartitionsWithIndex(task).collect()
        except Exception as raised:  # whatever py4j and Spark raise
            error = raised
        self._calls.put(functools.partial(self._note_end, error))

    def _note_end(self, error: Exception | None) -> None:
        self._spark_has_ended, self._spark_error = True, error

    def _serve(self, until: Callable[[], bool], deadline_s: float = math.inf) -> None:
        """Makes the calls of other threads; returns early when Spark's job has ended."""
        while not self._spark_has_ended and not until():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=None if math.isinf(left_s) else left_s)()

    def _serve_rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()
        self._output.end()

    def _has_failure(self) -> bool:
        return bool(self._failed) or any(self._statuses.values())

    def _knows_cause(self) -> bool:
        """Whether a rank failed by itself, and its exit status is there if it has said nothing."""
        silent = {each.rank for each in self._failed if each.outcome is None} | self._early()
        return any(map(_failed_by_itself, self._failed)) or bool(silent & {*self._statuses})

    def _early(self) -> set[int]:
        """Ranks that ended before they had the function."""
        return self._statuses.keys() - self._joined

    def _end(self, meeting: Meeting) -> None:
        """Leaves no rank and no job of Spark's."""
        if not self._spark_has_ended:
            meeting.hang_up()
            if len(self._joined) == self._count:  # else tasks may not even have begun
                self._serve(lambda: False, time.monotonic() + _PATIENCE_S)
        if not self._spark_has_ended:
            self._context.cancelJobGroup(self._group)
            self._serve(lambda: False, time.monotonic() + _PATIENCE_S)

    def _results(self, reports: list[Report], task: Task) -> list[Any]:
        """By rank; ``reports`` are those of ranks that failed, if any did."""
        has_failed = any(each.outcome is None or each.outcome.error for each in reports)
        if self._early() and not has_failed:
            raise self._not_started(min(self._early()))
        if self._spark_error is not None and not has_failed:
            raise not_run(self._count, self._spark_error, task.python) from self._spark_error
        has_failed = any(self._statuses.get(rank) != 0 for rank in range(self._count))
        return results_of(reports, self._count, has_failed=has_failed, death=self._death)

    def _death(self, lost: list[Report]) -> RankError:
        """Of the ranks that ended without a result, the first one is the cause."""
        if not lost:
            return died(f"of {self._count} ranks, some failed after their results.", ())
        rank, host = lost[0].rank, lost[0].host
        status = self._statuses.get(rank)
        how = "its exit status is unknown" if status is None else describe(status)
        what = f"rank {rank} of {self._count} failed: {how} (pid {lost[0].pid}, host {host})."
        return died(what, (rank,))

    def _late(self, seconds: float, task: Task) -> TimeoutError:
        return TimeoutError(
            sentences(
                "spark-start",
                f"{len(self._joined)} of {self._count} ranks have started within {seconds:g} s.",
                "each needs a slot, which other jobs of the cluster may have, and a connection to "
                f"the driver at {task.driver}.",
                "wait for other jobs, pass a larger start_timeout_s, or see the executors' logs; "
                "spark.driver.host is the address by which executors know the driver.",
            )
        )

    def _not_started(self, rank: int) -> RankError:
        error = RankError(
            sentences(
                "spark-rank-start",
                f"rank {rank} of {self._count} ended before it got its function: "
                f"{describe(self._statuses[rank])}.",
                f"`python -m {PROGRAM}` could not run there, or not reach the driver.",
                "see its last lines, above or in the executor's log; the Python of the executors "
                "needs farandole and cloudpickle as the driver has them.",
            )
        )
        error.ranks = (rank,)
        return error


def _failed_by_itself(report: Report) -> bool:
    """Whether a rank has raised something, and not because another one failed."""
    outcome = report.outcome
    return outcome is not None and bool(outcome.error) and not outcome.is_consequence
