# SPDX-License-Identifier: Apache-2.0
"""What took time on a rank: one span, or all of a category in columns."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard, overload

import numpy as np
import numpy.typing as npt

from farandole.profiler.growing_files import number_of, numbers_of
from farandole.profiler.system_metrics import Floats

Column = npt.NDArray[Any]
"""Of int64 or float64 where all values are such, else of Python's objects."""

MISSING = np.iinfo(np.int64).min
"""In a column of whole numbers: there is none."""


class Span(NamedTuple):
    """Something that took time on a rank."""

    category: str
    name: str
    start_us: float
    """Since 1970, by the clock of rank 0."""
    duration_us: float
    thread: int
    args: dict[str, Any]

    def whole(self, name: str) -> int | None:
        """An argument that is a whole number, such as a rank or bytes; None without it."""
        value = self.args.get(name)
        return value if _is_whole(value) else None

    @property
    def end_us(self) -> float:
        """When it ended, by the same clock."""
        return self.start_us + self.duration_us

    def number(self, name: str) -> float | None:
        """Of ``args``; None where there is none, or none that can be."""
        try:
            return number_of(self.args[name])
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclass(frozen=True, eq=False)
class Spans(Sequence[Span]):
    """Spans of one category, a row in each column; a `Span` is made when it is asked for."""

    category: str
    starts_us: Floats
    durations_us: Floats
    threads: npt.NDArray[np.int64]
    names: Column
    args: dict[str, Column]
    """None where a span does not have an argument."""

    def __len__(self) -> int:
        return len(self.starts_us)

    def __iter__(self) -> Iterator[Span]:
        own = (self.names, self.starts_us, self.durations_us, self.threads)
        columns = [column.tolist() for column in (*own, *self.args.values())]
        for name, start_us, duration_us, thread, *values in zip(*columns, strict=True):
            pairs = zip(self.args, values, strict=True)
            args = {key: value for key, value in pairs if value is not None}
            yield Span(self.category, name, start_us, duration_us, thread, args)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> Spans: ...
    def __getitem__(self, index: int | slice) -> Span | Spans:
        if isinstance(index, slice):
            return self.where(index)
        return next(iter(self.where([index])))

    @property
    def ends_us(self) -> Floats:
        """When each ended."""
        return self.starts_us + self.durations_us

    def values(self, name: str) -> list[Any]:
        """An argument of each; None without it."""
        return self.args[name].tolist() if name in self.args else [None] * len(self)

    def whole(self, name: str) -> npt.NDArray[np.int64]:
        """As `Span.whole` of each; `MISSING` without it."""
        values = (value if _is_whole(value) else MISSING for value in self.values(name))
        return np.fromiter(values, np.int64, len(self))

    def number(self, name: str) -> Floats:
        """As `Span.number` of each; NaN without it."""
        return numbers_of(self.values(name))

    def largest(self, name: str) -> int | None:
        """Of the whole numbers of an argument."""
        largest = int(self.whole(name).max(initial=MISSING))
        return None if largest == MISSING else largest

    def sums_by(self, name: str, values: Floats) -> dict[int, float]:
        """The sum of the values of those with the same whole number as an argument."""
        keys, places = np.unique(self.whole(name), return_inverse=True)
        sums = np.bincount(places, weights=values, minlength=len(keys))
        return {int(key): float(of) for key, of in zip(keys, sums, strict=True) if key != MISSING}

    def by_name(self) -> dict[str, Spans]:
        """Those with the same name, in the order of their first ones."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.names.tolist()):
            places.setdefault(name, []).append(place)
        return {name: self.where(found) for name, found in places.items()}

    def where(self, chosen: Any) -> Spans:
        """Those at these places, as NumPy chooses them."""
        return Spans(
            self.category,
            self.starts_us[chosen],
            self.durations_us[chosen],
            self.threads[chosen],
            self.names[chosen],
            {name: column[chosen] for name, column in self.args.items()},
        )

    def moved_to(self, starts_us: Floats) -> Spans:
        """The same with these starts, in their order."""
        moved = replace(self, starts_us=starts_us)
        if np.all(starts_us[1:] >= starts_us[:-1]):
            return moved
        return moved.where(np.argsort(starts_us, kind="stable"))


def spans_of(category: str, begin_us: float, events: list[dict[str, Any]]) -> Spans:
    """Of events as a file has them, with times since ``begin_us``, but for damaged ones."""
    starts_us = numbers_of([event.get("ts") for event in events]) + begin_us
    durations_us = numbers_of([event.get("dur") for event in events])
    threads = numbers_of([event.get("tid", 0) for event in events])
    names = [event.get("name") for event in events]
    args = [event.get("args", {}) for event in events]
    is_sound = np.isfinite(starts_us + durations_us + threads)
    is_sound &= np.array([type(each) is dict for each in args], dtype=np.bool_)
    is_sound &= np.array([name is not None for name in names], dtype=np.bool_)
    if not is_sound.all():
        names, args = (list(itertools.compress(each, is_sound)) for each in (names, args))
    return Spans(
        category,
        starts_us[is_sound],
        np.maximum(0, durations_us[is_sound]),
        threads[is_sound].astype(np.int64),
        _objects([str(name) for name in names]),
        {
            name: _column([each.get(name) for each in args])
            for name in dict.fromkeys(itertools.chain.from_iterable(args))
        },
    )


def joined(category: str, parts: Sequence[Spans]) -> Spans:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    parts = parts or [spans_of(category, 0, [])]
    names = dict.fromkeys(name for part in parts for name in part.args)
    return Spans(
        category,
        np.concatenate([part.starts_us for part in parts]),
        np.concatenate([part.durations_us for part in parts]),
        np.concatenate([part.threads for part in parts]),
        np.concatenate([part.names for part in parts]),
        {name: _joined_column([_with_missing(part, name) for part in parts]) for name in names},
    )


def _with_missing(part: Spans, name: str) -> Column:
    return part.args.get(name, np.full(len(part), None, dtype=object))


def _joined_column(columns: list[Column]) -> Column:
    """Whole numbers stay whole."""
    if len({column.dtype for column in columns}) > 1:
        columns = [column.astype(object) for column in columns]
    return np.concatenate(columns)


def _column(values: list[Any]) -> Column:
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values)
    if kinds == {int} and min(values) > -(2**62) and max(values) < 2**62:
        return np.array(values, dtype=np.int64)
    return _objects(values)


def _objects(values: list[Any]) -> Column:
    """Texts that are equal are one object."""
    interned = (sys.intern(value) if type(value) is str else value for value in values)
    return np.fromiter(interned, dtype=object, count=len(values))


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) < 2**62
