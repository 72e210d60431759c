# SPDX-License-Identifier: Apache-2.0
"""How a rank and its elastic launcher agree on who is in the group.

`farandole run --min-ranks` starts ranks and serves a store. A rank that needs a group, at first or
after a failure, asks there; when all ranks that live have asked, the launcher answers each with its
place in a new group. So ranks need not know who was lost.

Keys of the store: "asks", a counter; "ask/<number of the rank's process>", the newest question with
its serial number; "answer/<number>/<serial>"; "news", what has changed since the last answers. All
but the counter are Records, sealed with the job's secret.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError

from farandole import job_secret
from farandole.elastic_records import Records, is_count
from farandole.errors import CommError, SystemError, sentences

VARIABLE = "FARANDOLE_ELASTIC"
"""Where the launcher's store is, and the number of this process: "host:port/number"."""
_FORMING = timedelta(seconds=30)
"""All ranks of a place have just asked for it, so none is late; one may die before it is seen."""
_CONNECT = timedelta(seconds=60)
_PAUSE_S = 0.02
_MOST_TRIES = 3
"""How often the same ranks try to meet: an error that comes again is not that of a lost rank."""
_T = TypeVar("_T")
_logger = logging.getLogger("farandole")


@dataclass
class Standing:
    """What the launcher is told when this process asks for its next place."""

    commits: int = 0
    """Of the training so far: rank 0 becomes a process that has the newest."""
    needs_sync: bool = True
    """Whether its state may differ from the others'; in the answer, whether anyone's may."""


@dataclass(frozen=True)
class _Place:
    generation: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    sync: bool
    news: int
    members: list[int]


class _Tries:
    """How often an error has come to the same ranks, one time after the other."""

    def __init__(self) -> None:
        self._members: list[int] = []
        self._count = 0

    def are_over(self, members: list[int]) -> bool:
        """Count an error that has come to these; whether that was the last try."""
        self._count = self._count + 1 if members == self._members else 1
        self._members = members
        return self._count == _MOST_TRIES


@dataclass(frozen=True)
class _Answer:
    """Of the launcher."""

    place: _Place | None = None
    """In the next group; None: the process has none."""
    end: str = ""
    """Why the job ends."""


def _answer(found: Any) -> _Answer | None:
    """As the launcher writes it; None: it is another value."""
    if not isinstance(found, dict):
        return None
    if found == {"released": True}:
        return _Answer()
    if found.keys() == {"end"} and isinstance(found["end"], str):
        return _Answer(end=found["end"])
    members = found.get("members")
    if found.keys() != {each.name for each in fields(_Place)} or not isinstance(members, list):
        return None
    counts = [value for name, value in found.items() if name not in ("sync", "members")]
    if not all(map(is_count, [*counts, *members])) or not isinstance(found["sync"], bool):
        return None
    place = _Place(**found)
    return _Answer(place) if place.rank < place.size == len(members) else None


def _news(found: Any) -> tuple[int, int] | None:
    """A number and a HostUpdateResult; None: it is another value."""
    if not isinstance(found, list) or len(found) != 2 or not all(map(is_count, found)):
        return None
    return found[0], found[1]


class _Launcher:
    """The connection to the launcher's store. Used by one thread."""

    def __init__(self, place: str) -> None:
        address, _, number = place.rpartition("/")
        host, _, port = address.rpartition(":")
        self.number = int(number)
        self._address = address
        self._serial = 0
        self._news = 0
        self.members: list[int] = []
        with _reaching(address):
            self.store = TCPStore(host, int(port), is_master=False, timeout=_CONNECT)
        self._records = Records(self.store, job_secret.of_environment())

    def ask(self, standing: Standing) -> _Place:
        """Waits for this process's place in the next group."""
        self._serial += 1
        asked = {"serial": self._serial, "commits": standing.commits, "sync": standing.needs_sync}
        key = f"answer/{self.number}/{self._serial}"
        with _reaching(self._address):
            self._records.write(f"ask/{self.number}", asked)
            self.store.add("asks", 1)
            while (answer := self._records.read(key, _answer)) is None:
                time.sleep(_PAUSE_S)
        if answer.end:
            global _is_over
            _is_over = True
            raise CommError(answer.end)
        place = answer.place
        if place is None:
            _logger.info("this rank has no place in the next group, and ends.")
            raise SystemExit(0)
        self._news, self.members = place.news, place.members
        standing.needs_sync = place.sync
        return place

    def news(self) -> tuple[int, int] | None:
        """A number of what has changed since it was last asked, and the HostUpdateResult."""
        with _reaching(self._address):
            told = self._records.read("news", _news)
        if told is None or told[0] <= self._news:
            return None
        number, result = told
        self._news = number
        return number, result


@contextmanager
def _reaching(address: str) -> Iterator[None]:
    """Make torch's errors of the launcher's store a SystemError."""
    global _is_over
    try:
        yield
    except DistError as error:
        _is_over = True
        raise SystemError(
            sentences(
                "elastic-launcher-lost",
                f"the elastic launcher cannot be reached at {address}.",
                f"{first_line_of(error)}.",
                "see whether `farandole run` has ended; it holds the places of all ranks.",
            )
        ) from error


standing = Standing()
_launcher: _Launcher | None = None
_is_over = False


def is_elastic() -> bool:
    """Whether an elastic launcher started this process."""
    return VARIABLE in os.environ


def members() -> list[int]:
    """The numbers of the processes of the group, in rank order; empty without a launcher."""
    return [] if _launcher is None else _launcher.members


def news() -> tuple[int, int] | None:
    """What has changed among the places for ranks, told once; None without a launcher. Local."""
    return None if _launcher is None else _launcher.news()


def form(begin: Callable[[Store, int, int, timedelta], _T]) -> _T:
    """Forms a group of those that the launcher names: by ``begin``, until it succeeds.

    Args:
        begin: Makes the group of a store, a rank, the number of ranks and a timeout for forming.

    Raises:
        SystemExit: this process has no place any more; its exit status is 0.
        CommError: the launcher ends the job; the text says why. Or the same ranks have failed to
            form a group several times, as where their builds differ: the error of the last time.
        SystemError: the launcher is gone.
    """
    global _launcher, _is_over
    if _launcher is None:
        _launcher = _Launcher(os.environ[VARIABLE])
    tries = _Tries()
    while True:
        place = _launcher.ask(standing)
        os.environ.update(
            RANK=str(place.rank),
            WORLD_SIZE=str(place.size),
            LOCAL_RANK=str(place.local_rank),
            LOCAL_WORLD_SIZE=str(place.local_size),
        )
        store = PrefixStore(f"generation/{place.generation}", _launcher.store)
        try:
            return begin(store, place.rank, place.size, _FORMING)
        except CommError as error:
            if tries.are_over(place.members):
                _is_over = True
                raise
            _logger.info("the group did not form; the ranks try again: %s", first_line_of(error))


def until_formed(make: Callable[[], _T]) -> _T:
    """What ``make`` returns; again while ranks are lost meanwhile, if there is a launcher.

    Raises:
        CommError: there is none, it has ended the job, or the error came several times to the same
            ranks, as where their arguments differ.
    """
    tries = _Tries()
    while True:
        try:
            return make()
        except CommError as error:
            if _is_over or not is_elastic() or tries.are_over(members()):
                raise
            _logger.info("a rank was lost while ranks met again: %s", first_line_of(error))


def is_over() -> bool:
    """Whether the launcher has ended the job or is gone, or its ranks cannot form a group."""
    return _is_over


def first_line_of(error: BaseException) -> str:
    """What has happened, without why and how to fix it."""
    return str(error).partition("\n")[0]
