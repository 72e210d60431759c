# SPDX-License-Identifier: Apache-2.0
"""System metrics of a folder: those of `SystemMonitor`, and those of SageMaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farandole.profiler.growing_files import GrowingFiles, Problem, numbers_of

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

SNAPSHOT_S = 0.02
"""Values that lie no further apart were taken together: SageMaker's have several threads."""


class Metric(NamedTuple):
    """What is measured, by SageMaker's names; ``dimension`` is empty where SageMaker has none."""

    node: str
    type: str
    name: str
    dimension: str


class SystemMetric(NamedTuple):
    """A row."""

    metric: Metric
    timestamp: float
    """Seconds since 1970, by the clock of the node."""
    value: float


class Series(NamedTuple):
    """All values of a metric, in the order of time."""

    times: Floats
    values: Floats


class SystemMetrics:
    """Reads all nodes of a folder, and with each `refresh` what was added. Damage is counted."""

    def __init__(self, folder: Path, *, written_since_s: float = 0) -> None:
        self._files = GrowingFiles(
            folder, "system", r".+/\d{10}\.algo-\d+\.json", written_since_s=written_since_s
        )
        self._parts: dict[Metric, list[Series]] = {}
        self._series: dict[Metric, Series] = {}

    def refresh(self) -> int:
        """Read what is new; return how many values that is."""
        count = 0
        for file in self._files.files():
            rows = file.new_objects()
            sound = self._add(rows)
            file.damaged_lines += len(rows) - sound
            count += sound
        return count

    def problems(self) -> list[Problem]:
        """What could not be read."""
        return self._files.problems()

    def metrics(self) -> list[Metric]:
        """All that there are."""
        return sorted(self._parts)

    def nodes(self) -> list[str]:
        """Names of hosts."""
        return sorted({metric.node for metric in self._parts})

    def series(self, metric: Metric) -> Series:
        """Its values."""
        if metric not in self._series:
            times, values = (
                np.concatenate(part) for part in zip(*self._parts[metric], strict=True)
            )
            order = np.argsort(times, kind="stable")
            self._series[metric] = Series(times[order], values[order])
            self._parts[metric] = [self._series[metric]]
        return self._series[metric]

    def of(self, dimension: str, *, node: str | None = None) -> dict[Metric, Series]:
        """All series of a dimension, or of a name where there is no dimension."""
        return {
            metric: self.series(metric)
            for metric in self.metrics()
            if (metric.dimension or metric.name) == dimension and node in (None, metric.node)
        }

    def time_range(self) -> tuple[float, float] | None:
        """Seconds since 1970 of the first and the last value."""
        times = [self.series(metric).times for metric in self._parts]
        if not times:
            return None
        return float(min(each[0] for each in times)), float(max(each[-1] for each in times))

    def rows(self) -> Iterator[SystemMetric]:
        """One by one, metric by metric."""
        for metric in self.metrics():
            for time, value in zip(*self.series(metric), strict=True):
                yield SystemMetric(metric, float(time), float(value))

    def to_pandas(self) -> pd.DataFrame:
        """A table with the columns of smdebug's PandasFrame that matter. Needs pandas."""
        import pandas as pd

        columns = ["nodeID", "type", "system_metric", "dimension", "timestamp", "value"]
        rows = ((*row.metric, row.timestamp, row.value) for row in self.rows())
        return pd.DataFrame(rows, columns=columns)

    def _add(self, rows: list[dict[str, Any]]) -> int:
        """Return how many of them are values of a metric."""
        times = numbers_of([row.get("Timestamp") for row in rows])
        values = numbers_of([row.get("Value") for row in rows])
        is_sound = np.isfinite(times + values)
        sound = 0
        for metric, places in _by_metric(rows).items():
            chosen = np.array(places)[is_sound[places]]
            if len(chosen):
                self._parts.setdefault(metric, []).append(Series(times[chosen], values[chosen]))
                self._series.pop(metric, None)
                sound += len(chosen)
        return sound


def _by_metric(rows: list[dict[str, Any]]) -> dict[Metric, list[int]]:
    """The places of the rows of each metric; those without one are left out."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        names = (row.get("NodeId"), row.get("Type"), row.get("Name") or "", row.get("Dimension"))
        try:
            places.setdefault(names, []).append(place)
        except TypeError:  # one of them is a list
            continue
    return {
        Metric(*names): found
        for names, found in places.items()
        if all(isinstance(name, str) for name in names)
    }


def snapshots(times: Floats) -> npt.NDArray[np.int64]:
    """Number each of these sorted times so that those that were taken together have the same."""
    return np.cumsum(np.diff(times, prepend=times[:1]) > SNAPSHOT_S)
