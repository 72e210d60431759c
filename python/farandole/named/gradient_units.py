# SPDX-License-Identifier: Apache-2.0
"""Parameters of an optimizer whose gradients travel together, under one name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from farandole.errors import InvalidArgument, sentences
from farandole.named.handle import Handle
from farandole.named.sparse import SparseSum

BUCKET_BYTES = 8 << 20
"""Of the parameters of a unit, where the program gives no groups."""


class Unit:
    """Some parameters, and where their gradients of the current step are.

    Threads: hooks of autograd's threads call arrived(), the program's thread the rest.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        """Take parameters with their names; the first name is the unit's."""
        self.name = parameters[0][0]
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self.handle: Handle | None = None
        """Of the all_reduce of dense gradients, once it has begun."""
        self.sent: list[Tensor] = []
        """The parameters whose gradients are in it."""
        self.contexts: list[Any] = []
        """Of the compression, one for each of them."""
        self.sparse: list[tuple[Tensor, SparseSum]] = []
        """Gradients that travel on their own, with their parameters."""
        self.reset(1)

    def reset(self, passes: int) -> None:
        """A step begins, in which each parameter gets ``passes`` gradients."""
        self.has_begun = False
        self.handle, self.sent, self.contexts, self.sparse = None, [], [], []
        self._passes_left = [passes] * len(self.parameters)
        self._left = passes * len(self.parameters)
        self._all = self._left

    @property
    def has_gradients(self) -> bool:
        """Whether gradients of this step have arrived, or are on their way."""
        return self.has_begun or self._left < self._all

    def arrived(self, index: int) -> bool:
        """Count a gradient of a parameter; whether it was the last one of the step.

        Raises:
            ValueError: it is one more than the step's passes.
        """
        passes = self._passes_left[index]
        if passes <= 0:
            raise ValueError(index)
        self._passes_left[index] = passes - 1
        self._left -= 1
        return self._left == 0


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
    if isinstance(groups, int) and groups > 0:
        yield from map(Unit, filter(None, _parts(ordered, groups)))
        return
    rest = dict(ordered)
    for group in groups or ():
        chosen = [(name, rest.pop(name)) for name in group if name in rest]
        if chosen:
            yield Unit(chosen)
    yield from map(Unit, _buckets(rest.items()))


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


def _place_of(name: str) -> list[str | int]:
    """Numbers in a name count as such: modules come in their order, neighbours together."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _parts(
    ordered: list[tuple[str, Tensor]], count: int
) -> Iterator[list[tuple[str, Tensor]]]:
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
