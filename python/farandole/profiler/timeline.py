# SPDX-License-Identifier: Apache-2.0
"""Timelines of all ranks of a folder, as Farandole's recorder writes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from farandole.profiler.growing_files import GrowingFile, GrowingFiles, Problem, number_of

_PATTERN = r".+/\d+_\d+-.+_pythontimeline\.json(\.tmp)?"


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
        return value if isinstance(value, int) and abs(value) < 2**62 else None

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


class RankTimeline:
    """What one rank did; of all its processes, where it was started again."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.node = ""
        """As in system metrics: "algo-1"."""
        self.host = ""
        self.world_size = 0
        self.local_rank = 0
        self.started_us = math.inf
        """Since 1970, by its own clock: when its first process began to record."""
        self.lost_events = 0
        """That the recorder had no room for."""
        self.clock_error_us = 0.0
        """The largest that was measured."""
        self._spans: list[Span] = []  # by its own clock
        self._clock: list[tuple[float, float]] = []  # own time, what brings it to rank 0's clock
        self._aligned: list[Span] | None = None

    def spans(self, category: str | None = None) -> list[Span]:
        """In the order of their starts: all, or those of a category."""
        if self._aligned is None:
            offsets = self._offsets(np.array([span.start_us for span in self._spans]))
            moved = (
                span._replace(start_us=span.start_us + float(offset))
                for span, offset in zip(self._spans, offsets, strict=True)
            )
            self._aligned = sorted(moved, key=lambda span: span.start_us)
        if category is None:
            return self._aligned
        return [span for span in self._aligned if span.category == category]

    def offset_at(self, time_us: float) -> float:
        """What brings a time of its own clock to that of rank 0."""
        return float(self._offsets(np.array([time_us]))[0])

    def _offsets(self, times: Any) -> Any:
        """Between two measurements, clocks drift evenly."""
        if not self._clock:
            return np.zeros_like(times)
        measured = np.array(sorted(self._clock))
        return np.interp(times, measured[:, 0], measured[:, 1])

    def add_span(self, span: Span) -> None:
        """One more, by the rank's own clock."""
        self._spans.append(span)
        self._aligned = None

    def add_clock(self, time_us: float, offset_us: float, error_us: float) -> None:
        """A measurement, at a time of its own clock."""
        self._clock.append((time_us, offset_us))
        self.clock_error_us = max(self.clock_error_us, error_us)
        self._aligned = None


class _Header:
    """What the first events of a file say of the others."""

    def __init__(self) -> None:
        self.start_us: float | None = None
        self.rank: RankTimeline | None = None
        self.offset: tuple[float, float] | None = None
        """Offset and error of the clock, until an event says at what time."""
        self.events_before = 0
        """Whose rank and time are unknown."""


class Timeline:
    """Reads all ranks of a folder, and with each `refresh` what was added. Damage is counted."""

    def __init__(self, folder: Path, *, written_since_s: float = 0) -> None:
        self._files = GrowingFiles(
            folder, "framework/pevents", _PATTERN, written_since_s=written_since_s
        )
        self._headers: dict[GrowingFile, _Header] = {}
        self._ranks: dict[int, RankTimeline] = {}

    def refresh(self) -> int:
        """Read what is new; return how many events that is."""
        count = 0
        for file in self._files.files():
            header = self._headers.setdefault(file, _Header())
            for event in file.new_objects():
                try:
                    self._add(header, event)
                    count += 1
                except (KeyError, TypeError, ValueError, OverflowError):
                    file.damaged_lines += 1
        return count

    def problems(self) -> list[Problem]:
        """What could not be read."""
        found = self._files.problems()
        for file, header in self._headers.items():
            if header.events_before:
                what = "events without the header of a rank"
                found.append(Problem(self._files.name_of(file.path), what, header.events_before))
        return found

    def ranks(self) -> list[RankTimeline]:
        """Of which there are files, in order."""
        return [self._ranks[rank] for rank in sorted(self._ranks)]

    def _add(self, header: _Header, event: dict[str, Any]) -> None:
        """Raises what is wrong with it."""
        args = event.get("args", {})
        if event["ph"] == "M":
            self._add_metadata(header, str(event["name"]), args)
            return
        if header.rank is None or header.start_us is None:
            header.events_before += 1
            return
        rank = header.rank
        time_us = header.start_us + number_of(event["ts"])
        if header.offset is not None:
            rank.add_clock(time_us, *header.offset)
            header.offset = None
        if event["ph"] == "X":
            names = str(event["cat"]), str(event["name"])
            duration_us = max(0.0, number_of(event["dur"]))
            rank.add_span(Span(*names, time_us, duration_us, int(event.get("tid", 0)), dict(args)))
        elif event["name"] == "clock":
            rank.add_clock(time_us, number_of(args["offset_us"]), number_of(args["error_us"]))
        elif event["name"] == "lost":
            rank.lost_events += int(args["events"])

    def _add_metadata(self, header: _Header, name: str, args: dict[str, Any]) -> None:
        if name == "process_name":
            header.start_us = number_of(args["start_time_since_epoch_in_micros"])
        elif name == "farandole" and header.start_us is not None:
            number = int(args["rank"])
            rank = self._ranks.setdefault(number, RankTimeline(number))
            rank.node, rank.host = str(args["node"]), str(args.get("host", ""))
            rank.world_size, rank.local_rank = int(args["world_size"]), int(args["local_rank"])
            rank.started_us = min(rank.started_us, header.start_us)
            header.rank = rank
            offset, error = args.get("clock_offset_us", 0), args.get("clock_error_us", 0)
            header.offset = number_of(offset), number_of(error)
