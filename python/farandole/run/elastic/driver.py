# SPDX-License-Identifier: Apache-2.0
"""Decides which ranks there are: starts them, notices their ends, and answers those that ask.

A worker is the process of a rank; it has a number of its own for all of its life, while its rank
changes from one group (a generation) to the next. A worker asks when it needs a group: at its
start, when it was told that hosts have changed, or after an error because another one was lost.
When all members of the newest generation that live have asked, the next one is made of them and of
new workers that have asked. New workers are started as soon as there is place, and members are told
only when these ask, so nobody waits while a new worker starts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farandole.errors import CommError, sentences
from farandole.run.elastic.places import Places
from farandole.run.elastic.settings import ElasticSettings
from farandole.run.elastic.worker import Board, Process, Worker
from farandole.run.failure import describe

REMOVED, ADDED = 1, 2  # bits, as farandole.elastic.HostUpdateResult has them
_ERRORS = range(1, 128)
"""Exit statuses of programs that fail, and not because something kills them."""
_LEAVING_S = 30.0
"""How long a worker without a place may take to end."""


@dataclass
class Outcome:
    """How a job has ended."""

    why: str
    """What the driver says of it, three sentences; "" if nothing is to be said."""
    statuses: dict[int, int] = field(default_factory=dict)
    """Of workers that failed, by number, the first one first."""

    @property
    def succeeded(self) -> bool:
        """Whether it has done its work, with whatever ranks."""
        return not (self.why or self.statuses)


class Driver:
    """One job. Used by one thread, which calls step() some ten times a second."""

    def __init__(
        self,
        settings: ElasticSettings,
        hosts: Callable[[], Mapping[str, int]],
        board: Board,
        start: Callable[[int, str, int, int], Process],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._hosts, self._board = settings, hosts, board
        self._start, self._say, self._clock = start, say, clock
        self._places = Places(settings.cooldown_s, clock)
        self.workers: dict[int, Worker] = {}
        self._statuses: dict[int, int] = {}
        self._started = 0
        self._generation = 0
        self._finished = False  # a worker has ended with status 0
        self._waiting_since: float | None = clock()  # for places or for members
        self._places_told = -1  # the number of places in the last line of _tell_places()
        self._news = 0
        self._told: tuple[int, ...] = ()  # whom the last news was about
        self._last_failed_in = -1  # of which generation a worker had an error of its own last
        self._end = ""

    def step(self) -> Outcome | None:
        """Looks at everything once; how the job has ended, if it has."""
        self._note_ends()
        self._read_asks()
        if not (self._end or self._finished):
            self._fill()
            self._advance()
        self._send_away()
        if self.workers or (self._started == 0 and not self._end):
            return None
        failed_at_the_end = self._last_failed_in == self._generation
        if self._finished and not self._end and not failed_at_the_end:
            return Outcome("")
        return Outcome(self._end, self._statuses)

    def _give_up(self, error: CommError) -> None:
        """Ends the job: workers that ask are told, and all have some time to end."""
        self._end = str(error)

    def _living(self) -> list[Worker]:
        return [each for each in self.workers.values() if each.leaves_s is None]

    def _members(self) -> list[Worker]:
        """Whom the next group must wait for."""
        return [each for each in self._living() if each.generation == self._generation]

    def _note_ends(self) -> None:
        for worker in list(self.workers.values()):
            status = worker.process.poll()
            if status is None:
                continue
            del self.workers[worker.number]
            if worker.leaves_s is not None:
                continue
            if status == 0:
                self._finished = True
                continue
            self._statuses[worker.number] = status
            self._last_failed_in = worker.generation if status in _ERRORS else -1
            self._places.lose(worker.host)
            self._say(
                f"rank process {worker.number} on {worker.host} was lost ({describe(status)}); "
                f"{len(self._living())} are left"
            )

    def _read_asks(self) -> None:
        for number, ask in self._board.asks(self.workers).items():
            worker = self.workers[number]
            if ask["serial"] > worker.answered:
                worker.ask = ask

    def _fill(self) -> None:
        """Starts workers where there is place."""
        hosts = self._hosts()
        places = self._places.of(hosts)
        living = self._living()
        for worker in living:
            places[worker.host] = places.get(worker.host, 0) - 1
        if self._started == 0:
            count = sum(places.values())
            if count < self._settings.ranks:
                self._tell_places(count)
                return
        elif not living or (self._resets_left() == 0):
            return
        free = itertools.chain(*(itertools.repeat(*each) for each in places.items()))
        for host in itertools.islice(free, max(0, self._settings.max_ranks - len(living))):
            number = self._started
            self._started += 1
            place = self._free_place(host, hosts[host])
            process = self._start(number, host, place, hosts[host])
            self.workers[number] = Worker(number, host, place, process)
            if self._generation:
                self._say(f"rank process {number} starts on {host}")

    def _free_place(self, host: str, count: int) -> int:
        """One that no worker has which stays; those of workers that are about to end come last."""
        taken = {each.place for each in self.workers.values() if each.host == host}
        stay = {each.place for each in self._living() if each.host == host}
        free = next((place for place in range(count) if place not in stay | taken), None)
        return min(taken - stay) if free is None else free

    def _tell_places(self, count: int) -> None:
        """Reports that the hosts have too few places to start, whenever their number changes."""
        if count != self._places_told:
            self._places_told = count
            self._say(f"the job waits for {self._settings.ranks} places; its hosts have {count}")

    def _resets_left(self) -> int | None:
        limit = self._settings.reset_limit
        return None if limit is None else max(0, limit - (self._generation - 1))

    def _advance(self) -> None:
        """Makes a group if ranks wait for one."""
        members = self._members()
        late = [each for each in members if each.ask is None]
        if self._generation and not members:
            self._end_below_minimum(0)
            return
        if self._generation and len(late) == len(members):
            self._waiting_since = None
            self._tell_changes()
            return
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        if self._started and not late:
            self._form()
        if self._waiting_since is None or self._end:
            return
        if self._clock() - self._waiting_since > self._settings.elastic_timeout_s:
            self._give_up_waiting(late)

    def _tell_changes(self) -> None:
        """Tells members, who then ask, that some must go or that others are at the door."""
        go = self._excess(self._members())
        come = [each for each in self._living() if each.ask is not None]
        changed = tuple(sorted(each.number for each in (*go, *come)))
        if changed and changed != self._told:
            self._told = changed
            self._news += 1
            self._board.tell(self._news, REMOVED * bool(go) | ADDED * bool(come))

    def _excess(self, workers: list[Worker]) -> list[Worker]:
        """Those of ``workers`` for which there is no place, the newest first."""
        places = self._places.of(self._hosts())
        found = []
        for worker in sorted(workers, key=lambda each: (each.generation == 0, each.number)):
            places[worker.host] = places.get(worker.host, 0) - 1
            if places[worker.host] < 0:
                found.append(worker)
        return found

    def _form(self) -> None:
        """Makes the next generation of those that have asked, if they are enough."""
        asked = [each for each in self._living() if each.ask is not None]
        go = self._excess(asked)
        stay = sorted((each for each in asked if each not in go), key=_seniority)
        stay, more = stay[: self._settings.max_ranks], stay[self._settings.max_ranks :]
        if len(stay) < self._settings.min_ranks:
            self._end_unless_some_come(len(stay))
            return
        if self._generation and self._resets_left() == 0:
            self._give_up(_limit_reached(self._settings.reset_limit))
            return
        self._generation += 1
        needs_sync = any(each.generation == 0 or (each.ask or {})["sync"] for each in stay)
        first = {each.host: index for index, each in reversed(list(enumerate(stay)))}
        stay.sort(key=lambda each: first[each.host])  # ranks of a host follow each other
        on_host: dict[str, int] = {}
        for rank, worker in enumerate(stay):
            local_rank = on_host[worker.host] = on_host.get(worker.host, -1) + 1
            self._answer(
                worker,
                generation=self._generation,
                rank=rank,
                size=len(stay),
                local_rank=local_rank,
                local_size=sum(each.host == worker.host for each in stay),
                sync=needs_sync,
                news=self._news,
                members=[each.number for each in stay],
            )
            worker.generation = self._generation
        for worker in (*go, *more):
            self._release(worker)
        self._waiting_since, self._told = None, ()
        if self._generation > 1:
            self._say(f"group {self._generation} has {len(stay)} ranks")

    def _end_unless_some_come(self, count: int) -> None:
        starting = any(each.ask is None for each in self._living())
        hosts = self._hosts()
        if starting or self._settings.discovery_script or self._places.some_come_back(hosts):
            return
        self._end_below_minimum(count)

    def _end_below_minimum(self, count: int) -> None:
        lost = ", ".join(f"{number}: {describe(each)}" for number, each in self._statuses.items())
        self._give_up(
            CommError(
                sentences(
                    "elastic-below-minimum",
                    f"{count} ranks are left, and the job needs {self._settings.min_ranks}.",
                    f"rank processes were lost ({lost})." if lost else "no host has more places.",
                    "look at the output of the first one, or lower the minimum.",
                )
            )
        )

    def _give_up_waiting(self, late: list[Worker]) -> None:
        if self._started == 0:
            self._give_up(_too_few_places(self._settings, self._places_told))
            return
        if not late:
            self._end_below_minimum(sum(each.ask is not None for each in self._living()))
            return
        for worker in late:
            self._say(
                f"rank process {worker.number} on {worker.host} has not met the others for "
                f"{self._settings.elastic_timeout_s:g} s, and is killed"
            )
            worker.process.kill()
        self._waiting_since = self._clock()

    def _send_away(self) -> None:
        """Answers those that ask at the job's end, and kills those that stay too long."""
        for worker in self.workers.values():
            if self._end and worker.ask is not None:
                self._answer(worker, end=self._end)
            elif self._finished and worker.ask is not None:
                self._release(worker)
            if self._end and worker.leaves_s is None:
                worker.leaves_s = self._clock() + _LEAVING_S
            if worker.leaves_s is not None and self._clock() > worker.leaves_s:
                worker.process.kill()

    def _release(self, worker: Worker) -> None:
        self._answer(worker, released=True)
        worker.leaves_s = self._clock() + _LEAVING_S

    def _answer(self, worker: Worker, **answer: Any) -> None:
        assert worker.ask is not None
        worker.answered, worker.ask = worker.ask["serial"], None
        self._board.answer(worker.number, worker.answered, answer)


def _too_few_places(settings: ElasticSettings, count: int) -> CommError:
    return CommError(
        sentences(
            "elastic-too-few-places",
            f"the job could not start: it begins with {settings.ranks} ranks, and its hosts have "
            f"{count} places.",
            f"it has waited for hosts for {settings.elastic_timeout_s:g} s.",
            "name more places, in --hosts or in the host discovery script, or start with fewer "
            "ranks (-n).",
        )
    )


def _limit_reached(limit: int | None) -> CommError:
    return CommError(
        sentences(
            "elastic-reset-limit",
            f"ranks have met again {limit} times.",
            "that is the reset limit of this job.",
            "look for what ends its ranks, or raise the limit.",
        )
    )


def _seniority(worker: Worker) -> tuple[bool, int, int]:
    """Rank 0 is a member with the newest commit."""
    assert worker.ask is not None
    return worker.generation == 0, -worker.ask["commits"], worker.number
