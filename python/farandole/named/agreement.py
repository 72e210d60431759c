# SPDX-License-Identifier: Apache-2.0
"""How ranks that start operations in different orders agree on one order.

Protocol. Ranks meet in rounds, each of which is one exchange of a few bytes (two if a rank has many
new names). In a round every rank tells the names that its program has asked for since its last
round: a bit for a name whose number and signature the others know (NameTable), else the name with
its Signature. All ranks then hold the same tables: for each rank the set of names that it waits
for. A name that all ranks wait for is decided, and leaves the sets; ranks that have joined count as
waiting for every name. Decisions are run in the order of their numbers. As the tables are the same
everywhere, so are decisions, their order, the errors of requests that do not fit together, and the
numbers that are reused.

When a rank enters a round:
  1. at once, if its program has asked for something new;
  2. at once, if it waits for a name and is itself not what any other rank waits for: then only the
     others have something to tell, and it sleeps in the round until they come;
  3. after a pause of 0.2 to 5 ms (which a new request ends), if it waits for a name and others wait
     for it: both may be waiting for names in different orders, and only their programs know which
     comes next;
  4. after a pause of seconds (a heartbeat) if it waits for nothing, so that ranks that wait learn
     that it lives and what it has not asked for.

No deadlock: let every rank's program have asked for a name. A rank that has not told it yet enters
at once (1); one that has told it waits for it, so it is in a round or enters within 5 ms (2, 3). So
all ranks meet, and the name is decided after at most one more round.

Cost in a steady step: a round of P blocks of 512 bytes decides any number of known names (each a
bit, some 1000 in the block), and takes a rank one or two microseconds a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from farandole.named.name_table import NameTable
from farandole.named.request import Signature, conflict_of
from farandole.named.round_message import RoundMessage

_ALL = -1  # of Python's ints, a set of all bits


@dataclass
class Decision:
    """A name that all ranks wait for."""

    name: str
    signatures: list[Signature | None]
    """By rank; None of one that has joined and did not ask for it."""
    conflict: str
    """Why it is an error on all ranks, a clause; "" if it is to be run."""

    @property
    def signature(self) -> Signature:
        """That of the first rank that has not joined."""
        return next(each for each in self.signatures if each is not None)


@dataclass
class Outcome:
    """What a round has decided."""

    decisions: list[Decision] = field(default_factory=list)
    last_joined: int | None = None
    """The rank that joined last, once all have; then all count anew."""
    is_news: bool = False
    """Whether a rank told something."""
    gives_up: bool = False
    """Whether a rank has waited for as long as is allowed: then all ranks end."""


class Agreement:
    """One rank's copy of the tables. Nothing here knows of tensors or threads."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        exchange: Callable[[bytes], list[bytes]],
        capacity: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take an exchange that gives all ranks' bytes, and how many names are remembered."""
        self._rank = rank
        self._exchange = exchange
        self._clock = clock
        self._names = NameTable(capacity)
        self._waiting = [0] * world_size  # per rank: the set of numbers it waits for
        self._open = 0  # what any rank waits for
        self._joined = [False] * world_size
        self._last_joined = 0
        self._signatures: dict[int, list[Signature | None]] = {}  # per number and rank: the last
        self._conflicts: dict[int, str] = {}  # of signatures as they are
        self._since: dict[int, float] = {}  # per open number: when it was first told
        self.on_asked: Callable[[int, str, Signature | None, int | None], None] | None = None
        """Called with a rank, a name that it waits for, its signature and RoundMessage.times_us;
        "join" has neither."""

    @property
    def waits(self) -> bool:
        """Whether this rank waits for something."""
        return self._waiting[self._rank] != 0 or self._joined[self._rank]

    @property
    def is_waited_for(self) -> bool:
        """Whether another rank waits for what this rank has not asked for."""
        own = _ALL if self._joined[self._rank] else self._waiting[self._rank]
        return any(each & ~own for each in self._waiting)

    def round(
        self,
        requests: Iterable[tuple[str, Signature]],
        joins: bool = False,
        gives_up: bool = False,
        times_us: Mapping[str, int] | None = None,
    ) -> Outcome:
        """Tell new requests, hear those of the others, and decide. Collective.

        With ``times_us`` of all requests, the others are told when the program asked.
        """
        message = self._message(requests, joins or self._joined[self._rank])
        if times_us:
            names = [*map(self._names.name_of, _bits(message.known)), *dict(message.fresh)]
            message.times_us = [times_us[name] for name in names]
        message.gives_up = gives_up
        outcome = Outcome()
        for rank, data in enumerate(self._exchange(message.encode())):
            self._take(rank, RoundMessage.decode(data), outcome)
        ready = self._ready()
        for number in _bits(ready):
            outcome.decisions.append(self._decide(number))
        self._waiting = [waiting & ~ready for waiting in self._waiting]
        self._open &= ~ready
        if all(self._joined):
            outcome.last_joined = self._last_joined
            self._joined = [False] * len(self._joined)
        return outcome

    def stalled(self, seconds: float) -> dict[str, list[int]]:
        """Names that some ranks have waited for that long, with the ranks that have not asked."""
        limit = self._clock() - seconds
        return {
            self._names.name_of(number): [
                rank
                for rank, waiting in enumerate(self._waiting)
                if not (waiting >> number & 1 or self._joined[rank])
            ]
            for number, since in self._since.items()
            if since <= limit
        }

    def _message(self, requests: Iterable[tuple[str, Signature]], joined: bool) -> RoundMessage:
        message = RoundMessage(joined)
        for name, signature in requests:
            number = self._names.find(name)
            if number is not None and self._signatures[number][self._rank] == signature:
                message.known |= 1 << number
            else:
                message.fresh.append((name, signature))
        return message

    def _take(self, rank: int, message: RoundMessage, outcome: Outcome) -> None:
        if message.known or message.fresh:
            outcome.is_news = True
        outcome.gives_up |= message.gives_up
        asked = message.known
        for number in _bits(asked & ~self._open):
            self._names.open(self._names.name_of(number))
        for name, signature in message.fresh:
            number = self._names.open(name)
            self._signatures.setdefault(number, [None] * len(self._waiting))[rank] = signature
            self._conflicts.pop(number, None)
            asked |= 1 << number
        if asked & ~self._open:
            self._since.update(dict.fromkeys(_bits(asked & ~self._open), self._clock()))
        self._open |= asked
        self._waiting[rank] |= asked
        if message.joined and not self._joined[rank]:
            outcome.is_news = True
            self._joined[rank] = True
            self._last_joined = rank
            if self.on_asked is not None:
                self.on_asked(rank, "join", None, None)
        if self.on_asked is not None:
            names = [*map(self._names.name_of, _bits(message.known)), *dict(message.fresh)]
            for name, time_us in zip_longest(names, message.times_us):
                number = self._names.open(name)
                self.on_asked(rank, name, self._signatures[number][rank], time_us)

    def _ready(self) -> int:
        """The set of numbers that all ranks wait for."""
        ready = self._open
        for waiting, joined in zip(self._waiting, self._joined, strict=True):
            ready &= _ALL if joined else waiting
        return ready

    def _decide(self, number: int) -> Decision:
        signatures = list(self._signatures[number])
        if True in self._joined:
            for rank, joined in enumerate(self._joined):
                if joined and not self._waiting[rank] >> number & 1:
                    signatures[rank] = None
            conflict = conflict_of(signatures)
        else:
            if number not in self._conflicts:
                self._conflicts[number] = conflict_of(signatures)
            conflict = self._conflicts[number]
        decision = Decision(self._names.name_of(number), signatures, conflict)
        del self._since[number]
        for forgotten in self._names.close(number):
            del self._signatures[forgotten]
            self._conflicts.pop(forgotten, None)
        return decision


def _bits(number: int) -> Iterator[int]:
    """The places of its ones, from the lowest."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
