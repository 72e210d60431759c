# SPDX-License-Identifier: Apache-2.0
"""The report of a failed rank: what stands last on the screen."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from farandole.run.console import ERR, OUT, Console

_CONSEQUENCE = re.compile(r"\bfarandole(?:\.|::)(?:PeerFailure|AbortedError)\b")
"""In the last lines of a rank that ended because another one did."""
_OTHER_RANK = re.compile(r"\brank (\d+) \(pid (\d+)")
"""How such an error names the rank that ended or gave up; the last one in its first line."""
_OTHER_ERROR = re.compile(
    r"\bfarandole(?:\.|::)\w*Error\b.*?"
    r"(?:\b(?:failed(?: for bucket \d+)? on|abandoned by) ranks? (?P<ranks>\d+(?:(?:, | and )\d+)*)"
    r"|: rank (?P<rank>\d+) met an exception)"
)
"""How an error of a call that all ranks made names those on which it failed."""
_SILENT = "[link-silent]"
"""In the last lines of a rank that failed because another did not answer over the network."""
FAILED = re.compile(r"farandole run: (rank (\d+) of \d+ (?:failed|ended first|did not answer).*)")
"""The line of report() that names the rank."""
_LAST_OUTPUT, _LAST_ERRORS = 5, 25
"""Lines of standard output and standard error in the report."""
_MOST_OTHERS = 8
_HINTS = {
    75: "try again later: CheckpointOnSignal ends a training with this status after a save; start "
    "the training again.",
    -signal.SIGKILL: "something killed it from outside; the kernel does so when memory runs out "
    "(dmesg shows it, and farandole doctor the limits).",
    -signal.SIGSEGV: "PYTHONFAULTHANDLER=1 shows where a Python program was.",
    -signal.SIGABRT: "PYTHONFAULTHANDLER=1 shows where a Python program was.",
    -signal.SIGBUS: "/dev/shm or the disk of a mapped file may be full; farandole doctor shows it.",
    -signal.SIGILL: "it may have been built for another CPU.",
}


@dataclass(frozen=True)
class Failure:
    """Ranks that failed. Exit statuses are those of subprocess: -9 for signal 9."""

    statuses: dict[int, int]
    """By rank, the first to end first; only those that ended with another status than 0."""
    pids: dict[int, int] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    finished: frozenset[int] = frozenset()
    """Ranks that have ended with status 0."""
    in_order: bool = True
    """Whether it is known which rank ended first; else statuses are in the order of ranks."""
    sees_all: bool = True
    """Whether the output of all ranks comes here."""

    def own(self) -> dict[int, int]:
        """Statuses without those of ranks that the launcher ended, unless there are no others.

        The launcher ends ranks once one has failed, by SIGTERM, and by SIGKILL if that had no
        effect. Such a signal comes from elsewhere if nothing had failed before.
        """
        ends = (-signal.SIGTERM, *[-signal.SIGKILL] * self.in_order)
        found: dict[int, int] = {}
        for rank, status in self.statuses.items():
            is_first = self.in_order and not found
            if is_first or status not in ends:
                found[rank] = status
        return found or self.statuses


@dataclass(frozen=True)
class _Blame:
    """What the last lines of a rank say of another one."""

    rank: int
    has_failed: bool
    """It met an error of its own; else it ended or gave up."""


def root_cause(failure: Failure, console: Console) -> int:
    """The rank that failed first, and not because of another one if its last lines show that.

    It may be a rank without a known status: mpirun reports one rank only, and the launcher may have
    ended a rank before it could fail.
    """
    rank, seen = next(iter(failure.own())), set[int]()
    while rank not in seen:
        seen.add(rank)
        blame = _blame(rank, failure, console)
        if blame is not None and blame.rank not in seen:
            rank = blame.rank
    return rank


def describe_cause(ended: Mapping[int, int | None], console: Console) -> str:
    """Which rank failed first, and how, of those that have ended; None is an unknown status."""
    statuses = {rank: status for rank, status in ended.items() if status}
    failure = Failure(statuses, in_order=None not in ended.values())
    if not statuses:
        return "which one is unknown"
    cause, own = root_cause(failure, console), failure.own()
    if cause not in own:
        return f"rank {cause}"
    if not failure.in_order and own[cause] == -signal.SIGTERM:
        return "which one is unknown"
    return f"rank {cause}: {describe(own[cause])}"


def report(failure: Failure, world_size: int, console: Console) -> int:
    """Prints the report; returns the exit status of `farandole run`."""
    own = failure.own()
    first = root_cause(failure, console)
    reported = first if first in own else next(iter(own))
    status = own[reported]
    where = [f"pid {failure.pids[first]}"] if first in failure.pids else []
    where += [f"host {failure.hosts[first]}"] if first in failure.hosts else []
    place = f" ({', '.join(where)})" if where else ""
    shown = _last_lines(first, console)
    if reported == first:
        what = f"failed: {describe(status)}{place}."
    else:
        how = _how_it_ended(first, reported, failure, console)
        what = f"{how}{place}; rank {reported} failed because of it: {describe(status)}."
        if not shown and not failure.sees_all:
            what += f" Rank {first} printed nothing here: look at the output on its host."
        shown += _last_lines(reported, console)
    shown = shown or [f"Rank {first} printed nothing."]
    rest = " The other ranks were ended." if world_size > 1 else ""
    text = ["", *shown, "", f"farandole run: rank {first} of {world_size} {what}{rest}"]
    text += _others(failure, {first, reported})
    if status in _HINTS:
        text.append(f"hint: {_HINTS[status]}")
    console.say("\n".join(text))
    return shell_status(status)


def describe(status: int) -> str:
    """As "exit status 3" or "killed by SIGKILL"."""
    return f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"


def signal_name(number: int) -> str:
    """As "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_status(status: int) -> int:
    """What a shell makes of it: 128 + the signal's number."""
    return 128 - status if status < 0 else status


def status_of_shell(status: int) -> int:
    """The reverse. A program may have such a status without a signal: that of mpirun may be 213."""
    return 128 - status if 128 < status < 128 + signal.NSIG else status


def _is_silence(failure: Failure, console: Console) -> bool:
    """Whether a rank that failed says that another did not answer."""
    lines = (line for rank in failure.statuses for line in console.last_lines(str(rank), ERR))
    return any(_SILENT in line for line in lines)


def _how_it_ended(first: int, reported: int, failure: Failure, console: Console) -> str:
    """Of a rank that is not known to have failed by itself, as another one says."""
    if _is_silence(failure, console):
        return "did not answer"
    blame = _blame(reported, failure, console)
    if blame is not None and blame.rank == first and blame.has_failed:
        return "failed first"
    return "ended first" + " with exit status 0" * (first in failure.finished)


def _last_lines(rank: int, console: Console) -> list[str]:
    """Under a title, errors last; empty if it printed nothing, or prints on another host."""
    lines = console.last_lines(str(rank), OUT)[-_LAST_OUTPUT:]
    lines += console.last_lines(str(rank), ERR)[-_LAST_ERRORS:]
    return [f"The last lines of rank {rank}:", *(f"    {line}" for line in lines)] if lines else []


def _others(failure: Failure, named: set[int]) -> list[str]:
    """A line for each other rank that failed."""
    others = [
        f"rank {rank} failed as well: {describe(status)}."
        for rank, status in failure.own().items()
        if rank not in named
    ]
    left_out = len(others) - _MOST_OTHERS
    return others[:_MOST_OTHERS] + ([f"and {left_out} more ranks."] if left_out > 0 else [])


def _blame(rank: int, failure: Failure, console: Console) -> _Blame | None:
    """The other rank that was the cause, as the last lines of ``rank`` say; None: it says none."""
    lines = console.last_lines(str(rank), ERR)
    for index, line in enumerate(lines):
        text = " ".join(lines[index : index + 2])  # C++ prints the text in the next line
        if _CONSEQUENCE.search(line):
            named = _OTHER_RANK.findall(text)
            other = _rank_of(named[-1], failure) if named else rank
            return None if other == rank else _Blame(other, has_failed=False)
        if found := _OTHER_ERROR.search(text):
            others = list(map(int, re.findall(r"\d+", found["ranks"] or found["rank"])))
            return None if rank in others else _Blame(others[0], has_failed=True)
    return None


def _rank_of(named: tuple[str, str], failure: Failure) -> int:
    """The rank of a process that an error names by its number in the error's group and its pid."""
    number, pid = named
    return next((rank for rank, each in failure.pids.items() if each == int(pid)), int(number))
