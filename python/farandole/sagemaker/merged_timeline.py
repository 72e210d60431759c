# SPDX-License-Identifier: Apache-2.0
"""A part of the timelines of all ranks in one file, as smdebug's MergedTimeline writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from farandole.sagemaker.readers import LocalAlgorithmMetricsReader, TraceEvent


class MergeUnit(Enum):
    """What the limits of a part count."""

    TIME = "time"
    """Microseconds since 1970."""
    STEP = "step"


class MergedTimeline:
    """Writes Chrome's trace format; profiler.export_chrome_trace() writes the whole of a run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        file_suffix_filter: Sequence[str] | None = None,
        output_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open the folder of a profile.

        Args:
            path: The folder.
            file_suffix_filter: Without effect: there is one kind of files.
            output_directory: Where the part goes; the folder if None.

        Raises:
            InvalidArgument: there is no such folder.
        """
        del file_suffix_filter
        self._reader = LocalAlgorithmMetricsReader(path)
        self._to = Path(output_directory or path)

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: object = None,
    ) -> str:
        """Write what lies between ``start`` and ``end``; a process of the trace is a rank.

        Args:
            start: Microseconds since 1970, or the first step.
            end: Microseconds since 1970, or the step before which to end.
            unit: Of both.
            sys_metrics_filter: Without effect: the hardware is in system metrics.

        Returns:
            The path of the file.
        """
        del sys_metrics_filter
        if MergeUnit(unit) == MergeUnit.STEP:
            events = self._reader.get_events_by_step(int(start), int(end))
        else:
            events = self._reader.get_events(start, end)
        first_us = min((event.start_time for event in events), default=0.0)
        self._to.mkdir(parents=True, exist_ok=True)
        path = self._to / f"{int(first_us)}_merged_timeline.json"
        ranks = {event.pid: event.node_id for event in events}
        lines = [_process(rank, node) for rank, node in sorted(ranks.items())]
        lines += [_event(event, first_us) for event in events]
        path.write_text("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n")
        return str(path)

    def close(self) -> None:
        """Nothing: the file is whole."""


def _process(rank: int, node: str) -> dict[str, Any]:
    name = {"name": f"rank {rank} ({node})"}
    return {"name": "process_name", "ph": "M", "pid": rank, "args": name}


def _event(event: TraceEvent, first_us: float) -> dict[str, Any]:
    return {
        "name": event.event_name,
        "cat": event.event_phase,
        "ph": "X",
        "ts": round(event.start_time - first_us, 3),
        "dur": event.duration,
        "pid": event.pid,
        "tid": event.tid,
        "args": event.event_args,
    }
