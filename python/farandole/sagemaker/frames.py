# SPDX-License-Identifier: Apache-2.0
"""A profile as tables of pandas, with smdebug's columns."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from farandole.errors import NotSupported, sentences
from farandole.sagemaker.readers import LocalAlgorithmMetricsReader, LocalSystemMetricsReader

if TYPE_CHECKING:
    import pandas as pd

SYSTEM_COLUMNS = (
    "timestamp",
    "timestamp_us",
    "value",
    "system_metric",
    "dimension",
    "nodeID",
    "type",
)
FRAMEWORK_COLUMNS = (
    "start_time",
    "end_time",
    "start_time_us",
    "end_time_us",
    "tid",
    "pid",
    "framework_metric",
    "step",
    "bytes",
    "process",
    "nodeID",
)


class PandasFrame:
    """Tables of a profile's folder. Columns that end in _us count from the first system metric."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        use_in_memory_cache: bool = False,
        scan_interval: int = 0,
    ) -> None:
        """Open it; ``use_in_memory_cache`` and ``scan_interval`` are without effect.

        Raises:
            InvalidArgument: there is no such folder.
            NotSupported: pandas is not installed.
        """
        del use_in_memory_cache, scan_interval
        if importlib.util.find_spec("pandas") is None:
            raise NotSupported(
                sentences(
                    "sagemaker-pandas",
                    "PandasFrame cannot make tables.",
                    "pandas is not installed in this Python.",
                    "pip install pandas; without it, farandole.profiler.Profile has arrays.",
                )
            )
        self.path = path
        self.system_metrics_reader = LocalSystemMetricsReader(path)
        self.framework_metrics_reader = LocalAlgorithmMetricsReader(path)
        self.start_time = (
            self.system_metrics_reader.get_timestamp_of_first_available_file()
            or self.framework_metrics_reader.get_timestamp_of_first_available_file()
        )

    def get_all_system_metrics(self, selected_system_metrics: Collection[str] = ()) -> pd.DataFrame:
        """What hosts did; all names, or those selected."""
        system, _ = self.get_profiler_data_by_time(
            0, 2**62, selected_system_metrics=selected_system_metrics, get_framework_metrics=False
        )
        return system

    def get_all_framework_metrics(
        self, selected_framework_metrics: Collection[str] = ()
    ) -> pd.DataFrame:
        """What ranks did; all names and categories, or those selected."""
        _, framework = self.get_profiler_data_by_time(
            0,
            2**62,
            selected_framework_metrics=selected_framework_metrics,
            get_system_metrics=False,
        )
        return framework

    def get_profiler_data_by_time(
        self,
        start_time_us: float,
        end_time_us: float,
        cache_metrics: bool = False,
        selected_framework_metrics: Collection[str] = (),
        selected_system_metrics: Collection[str] = (),
        get_framework_metrics: bool = True,
        get_system_metrics: bool = True,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both tables of a time, in microseconds since 1970; ``cache_metrics`` has no effect."""
        import pandas as pd

        del cache_metrics
        system: list[list[Any]] = []
        if get_system_metrics:
            system = self._system_rows(start_time_us, end_time_us, selected_system_metrics)
        framework: list[list[Any]] = []
        if get_framework_metrics:
            framework = self._framework_rows(start_time_us, end_time_us, selected_framework_metrics)
        return (
            pd.DataFrame(system, columns=list(SYSTEM_COLUMNS)),
            pd.DataFrame(framework, columns=list(FRAMEWORK_COLUMNS)),
        )

    def get_profiler_data_by_step(
        self, start_step: int, end_step: int, cache_metrics: bool = False
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both tables of the steps from ``start_step`` to ``end_step``, with it."""
        events = self.framework_metrics_reader.get_events_by_step(start_step, end_step + 1)
        first = min((event.start_time for event in events), default=0)
        last = max((event.end_time for event in events), default=-1)
        return self.get_profiler_data_by_time(first, last, cache_metrics)

    def _system_rows(
        self, start_us: float, end_us: float, selected: Collection[str]
    ) -> list[list[Any]]:
        return [
            [
                _text(event.timestamp * 1e6),
                int(event.timestamp * 1e6) - self.start_time,
                event.value,
                event.name,
                event.dimension,
                event.node_id,
                event.type,
            ]
            for event in self.system_metrics_reader.get_events(start_us, end_us)
            if not selected or event.name in selected
        ]

    def _framework_rows(
        self, start_us: float, end_us: float, selected: Collection[str]
    ) -> list[list[Any]]:
        return [
            [
                _text(event.start_time),
                _text(event.end_time),
                event.start_time - self.start_time,
                event.end_time - self.start_time,
                event.tid,
                event.pid,
                event.event_name,
                event.event_args.get("step", -1),
                event.event_args.get("bytes", -1),
                event.event_phase,
                event.node_id,
            ]
            for event in self.framework_metrics_reader.get_events(start_us, end_us)
            if not selected or event.event_name in selected or event.event_phase in selected
        ]


def _text(time_us: float) -> str:
    moment = datetime.fromtimestamp(time_us / 1e6, tz=timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S:%f")
