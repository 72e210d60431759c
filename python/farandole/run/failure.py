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
_OTHER_RANK = re.compile(r"\brank (\d+) \(pid ")
"""How an error names the rank that ended or gave up; the last one in its first line."""
_SILENT = "[link-silent]"
"""In the last lines of a rank that failed because another did not answer over the network."""
FAILED = re.compile(r"farandole run: (rank (\d+) of \d+ (?:failed|ended first|did not answer).*)")
"""The line of report() that names the rank."""
_LAST_OUTPUT, _LAST_ERRORS = 5, 25
"""Lines of standard output and standard error in the report."""
_MOST_OTHERS = 8
_HINTS = {
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


def root_cause(failure: Failure, console: Console) -> int:
    """The rank that ended first, and not because of another one if its last lines show that.

    It may be a rank without a known status: mpirun reports one rank only. Ranks that the launcher
    ended are left out, and those whose error says that a peer died or gave up.
    """
    own = _failed_by_themselves(failure)
    blamed = {rank: _blamed(console.last_lines(str(rank), ERR)) for rank in own}
    causes = [rank for rank in own if blamed[rank] is None]
    if causes:
        return causes[0]
    rank, seen = own[0], set[int]()
    while rank not in seen:
        seen.add(rank)
        other = _blamed(console.last_lines(str(rank), ERR))
        if other is not None and other not in seen:
            rank = other
    return rank


def describe_cause(ended: Mapping[int, int | None], console: Console) -> str:
    """Which rank failed first, and how, of those that have ended; None is an unknown status."""
    failed = {rank: status for rank, status in ended.items() if status}
    if not failed:
        return "which one is unknown"
    cause = root_cause(Failure(failed), console)
    return f"rank {cause}: {describe(failed[cause])}" if cause in failed else f"rank {cause}"


def report(failure: Failure, world_size: int, console: Console) -> int:
    """Prints the report; returns the exit status of `farandole run`."""
    first = root_cause(failure, console)
    reported = first if first in failure.statuses else _failed_by_themselves(failure)[0]
    status = failure.statuses[reported]
    lines = _last_lines(first, console)
    shown = lines or _last_lines(reported, console) or [f"Rank {first} printed nothing."]
    where = [f"pid {failure.pids[first]}"] if first in failure.pids else []
    where += [f"host {failure.hosts[first]}"] if first in failure.hosts else []
    place = f" ({', '.join(where)})" if where else ""
    if reported == first:
        what = f"failed: {describe(status)}{place}."
    else:
        what = "did not answer" if _is_silence(failure, console) else "ended first"
        what += f"{place}; rank {reported} failed because of it: {describe(status)}."
        if not lines:
            what += f" Rank {first} printed nothing here: look at the output on its host."
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


def _is_silence(failure: Failure, console: Console) -> bool:
    """Whether a rank that failed says that another did not answer."""
    lines = (line for rank in failure.statuses for line in console.last_lines(str(rank), ERR))
    return any(_SILENT in line for line in lines)


def _last_lines(rank: int, console: Console) -> list[str]:
    """Under a title, errors last; empty if it printed nothing, or prints on another host."""
    lines = console.last_lines(str(rank), OUT)[-_LAST_OUTPUT:]
    lines += console.last_lines(str(rank), ERR)[-_LAST_ERRORS:]
    return [f"The last lines of rank {rank}:", *(f"    {line}" for line in lines)] if lines else []


def _failed_by_themselves(failure: Failure) -> list[int]:
    """Without the ranks that the launcher ended, unless there are no others."""
    own = [rank for rank, status in failure.statuses.items() if status != -signal.SIGTERM]
    return own or list(failure.statuses)


def _others(failure: Failure, named: set[int]) -> list[str]:
    """A line for each other rank that failed."""
    others = [
        f"rank {rank} failed as well: {describe(failure.statuses[rank])}."
        for rank in _failed_by_themselves(failure)
        if rank not in named
    ]
    left_out = len(others) - _MOST_OTHERS
    return others[:_MOST_OTHERS] + ([f"and {left_out} more ranks."] if left_out > 0 else [])


def _blamed(lines: list[str]) -> int | None:
    """The rank whose end was the cause, as these last lines of another rank say; else None."""
    for index, line in enumerate(lines):
        if _CONSEQUENCE.search(line):
            text = " ".join(lines[index : index + 2])  # C++ prints the text in the next line
            named = _OTHER_RANK.findall(text)
            return int(named[-1]) if named else None
    return None
