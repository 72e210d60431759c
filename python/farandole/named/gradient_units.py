# SPDX-License-Identifier: Apache-2.0
"""Parameters of an optimizer whose gradients travel together, under one name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakMethod

from torch import Tensor

from farandole import _C
from farandole.errors import InvalidArgument, sentences
from farandole.named.handle import Handle
from farandole.named.sparse import SparseSum

BUCKET_BYTES = 8 << 20
"""Of the parameters of a unit, where the program gives no groups."""
_CACHE_LINE_BYTES = 64


class Unit:
    """Some parameters, and where their gradients of the current step are.

    Threads: autograd's threads call ``on_arrival``, the program's thread the rest.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        """Take parameters with their names; the first name is the unit's."""
        self.name = parameters[0][0]
        # Whole cache lines first: only what begins with one is computed in its place.
        parameters = sorted(parameters, key=lambda pair: pair[1].nbytes % _CACHE_LINE_BYTES != 0)
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        first = self.parameters[0]
        self.is_uniform = all(
            each.device.type == "cpu" and each.dtype == first.dtype for each in self.parameters
        )
        """Whether gradients may lie in one piece of host memory."""
        self.on_arrival: Callable[[Unit, int | None], None] = _nobody
        """Called with the unit when all gradients of a step are there, or with the place of a
        parameter that has got one more. It holds neither the unit nor the optimizer, so that hooks
        end with these."""
        self.has_begun = False
        self.handle: Handle | None = None
        """Of the all_reduce of dense gradients, once it has begun."""
        self.sent: list[Tensor] = []
        """The parameters whose gradients are in it, but for those that lie in shared memory."""
        self.contexts: list[Any] = []
        """Of the compression, one for each of them."""
        self.sparse: list[tuple[Tensor, SparseSum]] = []
        """Gradients that travel on their own, with their parameters."""
        self.has_sparse: set[Tensor] = set()
        """Parameters that have had sparse gradients."""
        arrived = WeakMethod(self._arrived)
        self._arrivals = _C.ArrivalCounter(
            self.parameters, lambda excess: (arrived() or _ignore)(excess)
        )
        self._home: _C.GradientHome | None = None
        self._place = 0  # of the first parameter there
        self._is_gathered = False
        self.has_memory = False
        """Whether gradients have a place in memory that ranks share."""
        self.has_own_order = False
        """Whether they lie there in another order than that of their elements."""

    def live_in(self, home: _C.GradientHome, place: int) -> None:
        """The parameters are those of ``home`` from ``place`` on."""
        self._home, self._place = home, place
        self.has_memory = False

    def reset(self, passes: int) -> None:
        """A step begins, in which each parameter gets ``passes`` gradients."""
        self.has_begun = False
        self.handle, self.sent, self.contexts, self.sparse = None, [], [], []
        self._is_gathered = False
        self._arrivals.reset(passes)

    @property
    def has_gradients(self) -> bool:
        """Whether gradients of this step have arrived, or are on their way."""
        return self.has_begun or self._arrivals.has_arrivals()

    def take_memory(self, memory: Tensor) -> None:
        """Compute gradients in ``memory``, which ranks share, from the next backward on."""
        assert self._home is not None
        self._home.assign(self._place, memory)
        self.has_memory = True
        self.has_own_order = not all(each.is_contiguous() for each in self.parameters)

    def gathered(self) -> Tensor | None:
        """That memory, with all gradients in it; None if they cannot lie there."""
        memory = None if self._home is None else self._home.gather(self._place)
        self._is_gathered = memory is not None
        return memory

    def settle(self) -> None:
        """What was gathered is reduced: it is p.grad, whatever the program has put there since."""
        if self._is_gathered and self._home is not None:
            self._home.settle(self._place)

    def layout(self) -> str:
        """How gradients would lie in such memory: the shapes and strides of the parameters."""
        lies = [(tuple(each.shape), each.stride()) for each in self.parameters]
        return hashlib.sha256(repr(lies).encode()).hexdigest()[:32]

    def _arrived(self, excess: int | None) -> None:
        self.on_arrival(self, excess)


def _ignore(excess: int | None) -> None:
    """The unit is gone."""


def _nobody(unit: Unit, excess: int | None) -> None:
    """Nobody counts yet, or any more."""


def plan_units(
    named: Iterable[tuple[str, Tensor]], groups: int | Sequence[Sequence[str]] | None
) -> Iterator[Unit]:
    """The same on all ranks, in whatever order each of them has its parameters.

    Args:
        named: Parameters with their names.
        groups: How many units, or the names in each; what is in none, and everything if it is None
            or 0, is cut into buckets of BUCKET_BYTES.
    """
    ordered = sorted(named, key=lambda pair: _place_of(pair[0]))
    if isinstance(groups, int):
        parts = _parts(ordered, groups) if groups else _buckets(ordered)
        yield from map(Unit, filter(None, parts))
        return
    rest = dict(ordered)
    for group in groups or ():
        chosen = [(name, rest.pop(name)) for name in group if name in rest]
        if chosen:
            yield Unit(chosen)
    yield from map(Unit, _buckets(rest.items()))


def make_home(units: Iterable[Unit]) -> None:
    """Give the gradients of units that may have one a common home; nothing is allocated yet."""
    uniform = [unit for unit in units if unit.is_uniform]
    if not uniform:
        return
    home = _C.GradientHome([parameter for unit in uniform for parameter in unit.parameters])
    place = 0
    for unit in uniform:
        unit.live_in(home, place)
        place += len(unit.parameters)


def names_of_groups(
    groups: Sequence[Sequence[Tensor]], names: dict[Tensor, str]
) -> list[list[str]]:
    """The names of the parameters in each group.

    Raises:
        InvalidArgument: one is in two groups.
    """
    lists = [[names[each] for each in group if each in names] for group in groups]
    flat = [name for each in lists for name in each]
    if len(set(flat)) < len(flat):
        raise InvalidArgument(
            sentences(
                "averaging-groups",
                "the optimizer got groups that have a parameter twice.",
                "gradients of a group travel together, once.",
                "let each parameter be in one group at most.",
            )
        )
    return lists


def _place_of(name: str) -> tuple[list[str | int], str]:
    """Numbers in a name count as such: modules come in their order, neighbours together."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def _parts(ordered: list[tuple[str, Tensor]], count: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Of nearly equal lengths."""
    least, more = divmod(len(ordered), count)
    end = 0
    for index in range(count):
        begin, end = end, end + least + (index < more)
        yield ordered[begin:end]


def _buckets(ordered: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    bucket: list[tuple[str, Tensor]] = []
    filled = 0
    for name, parameter in ordered:
        if bucket and filled + parameter.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, filled = [], 0
        bucket.append((name, parameter))
        filled += parameter.nbytes
    if bucket:
        yield bucket
