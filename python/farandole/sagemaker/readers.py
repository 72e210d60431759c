# SPDX-License-Identifier: Apache-2.0
"""Events of a profile, as the readers of smdebug.profiler have them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, NoReturn

from farandole.profiler.profile import Profile
from farandole.profiler.spans import Span
from farandole.profiler.timeline import RankTimeline
from farandole.sagemaker.absent import not_offered


class TimeUnits(Enum):
    """Of times since 1970."""

    SECONDS = 1
    MILLISECONDS = 2
    MICROSECONDS = 3
    NANOSECONDS = 4


_TO_US = {
    TimeUnits.SECONDS: 1e6,
    TimeUnits.MILLISECONDS: 1e3,
    TimeUnits.MICROSECONDS: 1.0,
    TimeUnits.NANOSECONDS: 1e-3,
}


class SystemEvent(NamedTuple):
    """A value of the hardware."""

    type: str
    name: str
    dimension: str
    value: float
    node_id: str
    timestamp: float
    """Seconds since 1970."""


class TraceEvent(NamedTuple):
    """Something that took time on a rank; times are microseconds since 1970."""

    event_name: str
    event_phase: str
    """Its category, as "forward"."""
    start_time: float
    end_time: float
    duration: float
    pid: int
    """The rank."""
    tid: int
    node_id: str
    event_args: dict[str, Any]


class LocalSystemMetricsReader:
    """Reads what hosts did from the folder of a profile."""

    def __init__(
        self, trace_root_folder: str | os.PathLike[str], use_in_memory_cache: bool = False
    ) -> None:
        """Open it; ``use_in_memory_cache`` is without effect: all is kept.

        Raises:
            InvalidArgument: there is no such folder.
        """
        del use_in_memory_cache
        self.profile = Profile(trace_root_folder)

    def refresh_event_file_list(self) -> None:
        """Read what was added."""
        self.profile.refresh()

    def get_timestamp_of_first_available_file(self) -> int:
        """Microseconds since 1970 of the first value; 0 if there is none."""
        found = self.profile.metrics.time_range()
        return int(found[0] * 1e6) if found else 0

    def get_timestamp_of_latest_available_file(self) -> int:
        """Microseconds since 1970 of the last value; 0 if there is none."""
        found = self.profile.metrics.time_range()
        return int(found[1] * 1e6) if found else 0

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
    ) -> list[SystemEvent]:
        """The values of a time, in its order; of one type if ``event_type`` names it."""
        self.profile.refresh()
        first, last = start_time * _TO_US[unit] / 1e6, end_time * _TO_US[unit] / 1e6
        found = [
            SystemEvent(
                row.metric.type,
                row.metric.name,
                row.metric.dimension,
                row.value,
                row.metric.node,
                row.timestamp,
            )
            for row in self.profile.metrics.rows()
            if first <= row.timestamp <= last and event_type in (None, row.metric.type)
        ]
        return sorted(found, key=lambda event: event.timestamp)


class LocalAlgorithmMetricsReader:
    """Reads what ranks did from the folder of a profile."""

    def __init__(
        self, trace_root_folder: str | os.PathLike[str], use_in_memory_cache: bool = False
    ) -> None:
        """As LocalSystemMetricsReader."""
        del use_in_memory_cache
        self.profile = Profile(trace_root_folder)

    def refresh_event_file_list(self) -> None:
        """Read what was added."""
        self.profile.refresh()

    def get_timestamp_of_first_available_file(self) -> int:
        """Microseconds since 1970 of the first start; 0 if there is none."""
        return int(min((event.start_time for event in self._all()), default=0))

    def get_timestamp_of_latest_available_file(self) -> int:
        """Microseconds since 1970 of the last end, rounded up; 0 if there is none."""
        return int(max((event.end_time + 1 for event in self._all()), default=0))

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[TraceEvent]:
        """What began and ended in a time, in the order of starts.

        ``event_type`` names a category; ``file_suffix_filter`` is without effect: there is one
        kind of files.
        """
        del file_suffix_filter
        self.profile.refresh()
        first, last = start_time * _TO_US[unit], end_time * _TO_US[unit]
        return [
            event
            for event in self._all()
            if first <= event.start_time
            and event.end_time <= last
            and event_type in (None, event.event_phase)
        ]

    def get_events_by_step(
        self, start_step: int, end_step: int, event_type: str | None = None
    ) -> list[TraceEvent]:
        """What lies in the steps from ``start_step`` to before ``end_step``."""
        steps = [
            event
            for event in self._all()
            if event.event_phase == "step"
            and start_step <= event.event_args.get("step", -1) < end_step
        ]
        if not steps:
            return []
        first = min(step.start_time for step in steps)
        last = max(step.end_time for step in steps)
        return self.get_events(first, last, event_type=event_type)

    def _all(self) -> list[TraceEvent]:
        found = [
            _event(rank, span) for rank in self.profile.timeline.ranks() for span in rank.spans()
        ]
        return sorted(found, key=lambda event: event.start_time)


def _event(rank: RankTimeline, span: Span) -> TraceEvent:
    return TraceEvent(
        span.name,
        span.category,
        span.start_us,
        span.end_us,
        span.duration_us,
        rank.rank,
        span.thread,
        rank.node,
        span.args,
    )


class S3Reader:
    """Not supported: profiles are read from folders."""

    def __init__(self, *_values: Any, **_named: Any) -> None:
        """Raise NotSupported."""
        _no_s3()


def _no_s3() -> NoReturn:
    raise not_offered(
        "a reader of S3",
        "profiles are read from folders",
        "copy it here first, as by aws s3 sync, and pass the folder to "
        "farandole.profiler.Profile()",
    )
