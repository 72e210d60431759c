# SPDX-License-Identifier: Apache-2.0
"""Runs a function of this program on ranks that `farandole run` starts, and collects its results.

The ranks are processes of their own, so it works from scripts, notebooks and drivers of Spark. They
get the function and give their results through a socket, on which both sides prove that they know
the job's secret; TCP where ranks may be on other hosts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from farandole import _C
from farandole.errors import Error, InvalidArgument, NotSupported, sentences
from farandole.run.command_line import job_of, make_parser
from farandole.run.failure import FAILED, describe, status_of_shell
from farandole.run.function_meeting import Listener, Meeting, Report
from farandole.run.hosts import are_all_here
from farandole.run.job import Job

PROGRAM = "farandole.run.function_rank"
"""A module: what each rank runs."""
_PATIENCE_S = 5.0
"""How long ranks may take to end when this program is interrupted, and readers when all ended."""


class RankError(Error):
    """A rank of run_function() raised, or ended without a result. ``ranks`` are those that did."""


def run_function(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    ranks: int,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    python: str | None = None,
    output: IO[str] | None = None,
) -> list[Any]:
    """Call ``function(*args, **kwargs)`` on each of ``ranks`` ranks; their results, in rank order.

    Function, arguments and results travel by cloudpickle: functions of notebooks and of the script
    by value, those of modules by name, which ranks import from the same paths. Ranks have the
    variables of torchrun, so farandole.init_process_group() connects them. If one fails, all are
    ended; with options such as ``--min-ranks`` the others continue, and the results are those of
    the ranks that have returned. Returns when no rank is left; nothing else stays behind, even
    if this program is killed.

    Args:
        function: What each rank calls, in its main thread.
        args: Of it.
        kwargs: Of it.
        ranks: How many, on all hosts.
        options: More options of `farandole run`, as ["--hosts", "h1:2,h2:2"].
        variables: For the ranks, beside those of this process.
        python: Of the ranks, if it is not this one.
        output: A text stream for what ranks print; None: the standard streams of this process.

    Raises:
        RankError: a rank raised, died, or could not be started. Its cause is what was raised.
        InvalidArgument: an option is wrong, or the function cannot be pickled.
        NotSupported: cloudpickle is missing.

    Threads: any; calls may run at the same time.
    """
    payload = pickled(function, tuple(args), dict(kwargs or {}))
    program = [python or sys.executable, "-m", PROGRAM]
    arguments = ["-n", str(ranks), *options, *program]
    job = job_of(make_parser().parse_args(arguments))
    host = _C.address_of_this_host() if _reaches_others(job) else None
    listener = _Sayings(output or sys.stdout)
    with contextlib.closing(
        Meeting(payload, host=host, path=sys.path, listener=listener)
    ) as meeting:
        environment = {**os.environ, **(variables or {}), **meeting.variables()}
        launcher = subprocess.Popen(
            [sys.executable, "-m", "farandole", "run", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # signals of the terminal reach it through this program alone
        )
        failed: list[re.Match[str]] = []
        readers = _relay(launcher, output, failed)
        try:
            status = launcher.wait()
        except BaseException:
            _end(launcher)
            raise
        finally:
            for reader in readers:
                reader.join(_PATIENCE_S)
        reports, world_size = meeting.reports(_PATIENCE_S), job.world_size
        if job.elastic is not None and status == 0:  # it has done its work with some ranks
            reports = [each for each in reports if each.outcome and not each.outcome.error]
            world_size = max(1, len(reports))
        return results_of(
            reports,
            world_size,
            has_failed=status != 0,
            death=lambda lost: _death(failed, lost, world_size, status),
        )


def _reaches_others(job: Job) -> bool:
    """Whether ranks may be on other hosts."""
    if job.elastic is None:
        return bool(job.placed)
    return job.elastic.discovery_script is not None or not are_all_here(job.elastic.hosts)


class _Sayings(Listener):
    """Prints what ranks say to this program."""

    def __init__(self, target: IO[str]) -> None:
        self._target = target

    def said(self, rank: int, text: str) -> None:
        del rank
        _write(self._target, f"{text}\n")


def pickled(*values: Any) -> bytes:
    """A function and its arguments, for ranks.

    Raises:
        InvalidArgument: one of them cannot be pickled.
        NotSupported: cloudpickle is missing.
    """
    try:
        writer: Any = importlib.import_module("cloudpickle")
    except ImportError as error:
        raise NotSupported(
            sentences(
                "function-cloudpickle",
                "run_function() was called, and cloudpickle is not installed.",
                "it brings functions of a script or notebook to the ranks.",
                "pip install cloudpickle, or put the function into a script and start that with "
                "`farandole run`.",
            )
        ) from error
    try:
        data: bytes = writer.dumps(values)
    except Exception as error:  # whatever the objects raise
        raise InvalidArgument(
            sentences(
                "function-pickle",
                f"run_function() cannot bring {values[0]!r} to the ranks.",
                f"it, its arguments or what it uses cannot be pickled: {error}",
                "make such objects (locks, files, groups) within the function.",
            )
        ) from error
    return data


def _relay(
    launcher: subprocess.Popen[bytes], output: IO[str] | None, failed: list[re.Match[str]]
) -> list[threading.Thread]:
    """Threads that print what the ranks do: sys.stdout may be that of a notebook.

    Lines of `farandole run` that name a failed rank are added to ``failed``.
    """
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    streams = ((launcher.stdout, output or sys.stdout), (launcher.stderr, output or sys.stderr))
    threads = [
        threading.Thread(target=_copy, args=(*pair, failed), daemon=True) for pair in streams
    ]
    for thread in threads:
        thread.start()
    return threads


def _copy(source: IO[bytes], target: IO[str], failed: list[re.Match[str]]) -> None:
    for data in source:
        line = data.decode(errors="replace")
        if found := FAILED.match(line):
            failed.append(found)
        _write(target, line)


def _write(target: IO[str], text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it, but the ranks go on
        target.write(text)
        target.flush()


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """As a user would: once to end the ranks in order, once more to kill them."""
    for _ in range(2):
        launcher.send_signal(signal.SIGINT)
        try:
            launcher.wait(_PATIENCE_S)
            return
        except subprocess.TimeoutExpired:
            continue
    launcher.kill()
    launcher.wait()


def results_of(
    reports: list[Report],
    world_size: int,
    *,
    has_failed: bool,
    death: Callable[[list[Report]], RankError],
) -> list[Any]:
    """By rank.

    Args:
        reports: Of ranks that have got the function, the first to end first.
        world_size: How many ranks there are.
        has_failed: Whether an exit status is not 0.
        death: Makes the error, of ranks that ended without an outcome, if none has raised.

    Raises:
        RankError: one raised, or gave none.
    """
    raised = [each for each in reports if each.outcome is not None and each.outcome.error]
    own = [each for each in raised if each.outcome and not each.outcome.is_consequence]
    lost = [each for each in reports if each.outcome is None]
    if own or (raised and not lost):
        raise _raised((own or raised)[0], world_size)
    if has_failed or len(reports) - len(lost) < world_size:
        raise death(lost)
    outcomes = [each.outcome for each in reports if each.outcome is not None]
    outcomes.sort(key=lambda each: each.rank)
    return [_unpickled(each.result, each.rank) for each in outcomes]


def _unpickled(result: bytes, rank: int) -> Any:
    try:
        return pickle.loads(result)
    except Exception as error:
        lost = RankError(
            sentences(
                "function-result-lost",
                f"the result of rank {rank} cannot be made again here.",
                f"it was pickled there, and to unpickle it raised {type(error).__name__}: {error}.",
                "return numbers, tensors, dicts and the like, or save it to a file.",
            )
        )
        lost.ranks = (rank,)
        raise lost from error


def _raised(report: Report, world_size: int) -> RankError:
    outcome = report.outcome
    assert outcome is not None
    error = RankError(
        sentences(
            "function-raised",
            f"rank {outcome.rank} of {world_size} raised {outcome.error}",
            f"the function failed there:\n{outcome.traceback}",
            "see that traceback; the other ranks were ended.",
        )
    )
    error.ranks = (outcome.rank,)
    error.__cause__ = outcome.cause()
    return error


def _death(
    failed: list[re.Match[str]], lost: list[Report], world_size: int, status: int
) -> RankError:
    """Of the rank that `farandole run` names, else of the first that ended without a result."""
    how = describe(status_of_shell(status))
    if failed:
        return died(failed[-1][1], (int(failed[-1][2]),))
    if lost:
        return died(f"rank {lost[0].rank} of {world_size} ended: {how}.", (lost[0].rank,))
    return died(f"`farandole run` ended with {how}.", ())


def died(what: str, ranks: tuple[int, ...]) -> RankError:
    """The error of ranks that gave neither a result nor an exception."""
    error = RankError(
        sentences(
            "function-died",
            f"the function gave no result: {what}",
            "a rank was killed, left the function by an exit, or could not begin.",
            "see its last lines above.",
        )
    )
    error.ranks = ranks
    return error
