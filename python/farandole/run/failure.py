# SPDX-License-Identifier: Apache-2.0
"""The report of a failed rank: what stands last on the screen."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field

from farandole.run.console import Console

_CONSEQUENCE = re.compile(r"^(?:\w+\.)*(?:PeerFailure|AbortedError)\b")
"""The last line of a rank that ended because another one did."""
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
    """The rank that failed first, and not because of another one if that can be seen.

    Ranks that torchrun or mpirun ended are left out, and those whose last error is that a peer died
    or gave up.
    """
    own = [rank for rank, status in failure.statuses.items() if status != -signal.SIGTERM]
    causes = [rank for rank in own if not _is_consequence(console.last_lines(str(rank)))]
    return (causes or own or list(failure.statuses))[0]


def report(failure: Failure, world_size: int, console: Console) -> int:
    """Prints the report; returns the exit status of `farandole run`."""
    first = root_cause(failure, console)
    status = failure.statuses[first]
    lines = console.last_lines(str(first))
    text = ["", f"The last lines of rank {first}:" if lines else f"Rank {first} printed nothing."]
    text += [f"    {line[:2000]}" for line in lines]
    text += ["", f"farandole run: rank {first} of {world_size} failed: {describe(status)}"]
    where = []
    if first in failure.pids:
        where.append(f"pid {failure.pids[first]}")
    if first in failure.hosts:
        where.append(f"host {failure.hosts[first]}")
    text[-1] += f" ({', '.join(where)})." if where else "."
    if world_size > 1:
        text[-1] += " The other ranks were ended."
    text += _others(failure, first)
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


def _others(failure: Failure, first: int) -> list[str]:
    """A line for each other rank that failed by itself."""
    others = [
        f"rank {rank} failed as well: {describe(status)}"
        for rank, status in failure.statuses.items()
        if rank != first and status != -signal.SIGTERM
    ]
    left_out = len(others) - _MOST_OTHERS
    return others[:_MOST_OTHERS] + ([f"and {left_out} more ranks."] if left_out > 0 else [])


def _is_consequence(lines: list[str]) -> bool:
    return any(_CONSEQUENCE.match(line) for line in lines)
