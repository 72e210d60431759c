# SPDX-License-Identifier: Apache-2.0
"""Timelines of all ranks of a folder, as Farandole's recorder writes them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from farandole.profiler.growing_files import GrowingFile, GrowingFiles, Problem, number_of
from farandole.profiler.spans import Span, Spans, joined, spans_of

_PATTERN = r".+/\d+_\d+-.+_pythontimeline\.json(\.tmp)?"


class RankTimeline:
    """What one rank did; of all its processes, where it was started again."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.node = ""
        """As in system metrics: "algo-1"."""
        self.host = ""
        self.world_size = 0
        self.local_rank = 0
        self.processes: set[str] = set()
        """Pids and hosts in the names of its files; one that was started again has several."""
        self.started_us = math.inf
        """Since 1970, by its own clock: when its first process began to record."""
        self.lost_events = 0
        """That the recorder had no room for."""
        self.clock_error_us = 0.0
        """The largest that was measured."""
        self._parts: dict[str, list[Spans]] = {}  # of each category, by its own clock
        self._clock: list[tuple[float, float]] = []  # own time, what brings it to rank 0's clock
        self._aligned: dict[str, Spans] = {}

    @overload
    def spans(self) -> Sequence[Span]: ...
    @overload
    def spans(self, category: str) -> Spans: ...
    def spans(self, category: str | None = None) -> Sequence[Span]:
        """In the order of their starts: all, or those of a category, which have columns too."""
        if category is None:
            every = (span for each in self._parts for span in self.spans(each))
            return sorted(every, key=lambda span: span.start_us)
        if category not in self._aligned:
            own = joined(category, self._parts.get(category, []))
            if len(own):
                self._parts[category] = [own]
            moved = own.moved_to(own.starts_us + self._offsets(own.starts_us))
            self._aligned[category] = moved
        return self._aligned[category]

    def time_range(self) -> tuple[float, float] | None:
        """When the first span began and the last one ended, in microseconds."""
        every = [self.spans(category) for category in self._parts]
        if not every:
            return None
        start_us = min(float(each.starts_us[0]) for each in every)
        return start_us, max(float(each.ends_us.max()) for each in every)

    def offset_at(self, time_us: float) -> float:
        """What brings a time of its own clock to that of rank 0."""
        return float(self._offsets(np.array([time_us]))[0])

    def _offsets(self, times: Any) -> Any:
        """Between two measurements, clocks drift evenly."""
        if not self._clock:
            return np.zeros_like(times)
        measured = np.array(sorted(self._clock))
        return np.interp(times, measured[:, 0], measured[:, 1])

    def add_spans(self, spans: Spans) -> None:
        """More of them, by the rank's own clock."""
        self._parts.setdefault(spans.category, []).append(spans)
        self._aligned.pop(spans.category, None)

    def add_clock(self, time_us: float, offset_us: float, error_us: float) -> None:
        """A measurement, at a time of its own clock."""
        self._clock.append((time_us, offset_us))
        self.clock_error_us = max(self.clock_error_us, error_us)
        self._aligned.clear()


class _Header:
    """What the first events of a file say of the others."""

    def __init__(self) -> None:
        self.start_us: float | None = None
        self.rank: RankTimeline | None = None
        self.offset: tuple[float, float] | None = None
        """Offset and error of the clock, until a span says at what time."""
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
            events = file.new_objects()
            damaged = self._add(header, events)
            if header.rank is not None:
                header.rank.processes.add(file.path.name.split("_")[1])
            file.damaged_lines += damaged
            count += len(events) - damaged
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

    def _add(self, header: _Header, events: list[dict[str, Any]]) -> int:
        """Return how many of them are damaged."""
        damaged = 0
        spans: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            try:
                if event["ph"] == "X" and header.rank is not None:
                    spans[event["cat"]].append(event)
                else:
                    self._add_other(header, event)
            except (KeyError, TypeError, ValueError, OverflowError):
                damaged += 1
        for category, found in spans.items():
            damaged += len(found) - self._add_spans(header, category, found)
        return damaged

    def _add_spans(self, header: _Header, category: str, events: list[dict[str, Any]]) -> int:
        """Return how many are sound."""
        assert header.rank is not None
        assert header.start_us is not None
        found = spans_of(str(category), header.start_us, events)
        if len(found):
            if header.offset is not None:
                header.rank.add_clock(float(found.starts_us[0]), *header.offset)
                header.offset = None
            header.rank.add_spans(found)
        return len(found)

    def _add_other(self, header: _Header, event: dict[str, Any]) -> None:
        """Raises what is wrong with it."""
        args = event.get("args", {})
        if event["ph"] == "M":
            self._add_metadata(header, str(event["name"]), args)
        elif header.rank is None or header.start_us is None:
            header.events_before += 1
        elif event["name"] == "clock":
            time_us = header.start_us + number_of(event["ts"])
            offset_us, error_us = number_of(args["offset_us"]), number_of(args["error_us"])
            header.rank.add_clock(time_us, offset_us, error_us)
        elif event["name"] == "lost":
            header.rank.lost_events += int(args["events"])

    def _add_metadata(self, header: _Header, name: str, args: dict[str, Any]) -> None:
        if name == "process_name":
            header.start_us = number_of(args["start_time_since_epoch_in_micros"])
        elif name == "farandole" and header.start_us is not None:
            number, node = int(args["rank"]), str(args["node"])
            world_size, local_rank = int(args["world_size"]), int(args["local_rank"])
            rank = self._ranks.setdefault(number, RankTimeline(number))
            rank.node, rank.host = node, str(args.get("host", ""))
            rank.world_size, rank.local_rank = world_size, local_rank
            rank.started_us = min(rank.started_us, header.start_us)
            header.rank = rank
            offset, error = args.get("clock_offset_us", 0), args.get("clock_error_us", 0)
            header.offset = number_of(offset), number_of(error)
