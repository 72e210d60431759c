# SPDX-License-Identifier: Apache-2.0
"""System metrics of a folder: those of `SystemMonitor`, and those of SageMaker."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farandole.profiler.growing_files import GrowingFiles, Problem, number_of

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
        self._times: dict[Metric, array[float]] = {}
        self._values: dict[Metric, array[float]] = {}
        self._series: dict[Metric, Series] = {}

    def refresh(self) -> int:
        """Read what is new; return how many values that is."""
        count = 0
        for file in self._files.files():
            for row in file.new_objects():
                if self._add(row):
                    count += 1
                else:
                    file.damaged_lines += 1
        return count

    def problems(self) -> list[Problem]:
        """What could not be read."""
        return self._files.problems()

    def metrics(self) -> list[Metric]:
        """All that there are."""
        return sorted(self._values)

    def nodes(self) -> list[str]:
        """Names of hosts."""
        return sorted({metric.node for metric in self._values})

    def series(self, metric: Metric) -> Series:
        """Its values."""
        if metric not in self._series:
            times = np.array(self._times[metric])
            order = np.argsort(times, kind="stable")
            self._series[metric] = Series(times[order], np.array(self._values[metric])[order])
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
        if not self._times:
            return None
        times = self._times.values()
        return min(min(each) for each in times), max(max(each) for each in times)

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

    def _add(self, row: dict[str, Any]) -> bool:
        """Whether it is a row."""
        try:
            names = [row["NodeId"], row["Type"], row.get("Name") or "", row["Dimension"]]
            time, value = number_of(row["Timestamp"]), number_of(row["Value"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        if not all(isinstance(name, str) for name in names):
            return False
        metric = Metric(*names)
        self._times.setdefault(metric, array("d")).append(time)
        self._values.setdefault(metric, array("d")).append(value)
        self._series.pop(metric, None)
        return True


def snapshots(times: Floats) -> npt.NDArray[np.int64]:
    """Number each of these sorted times so that those that were taken together have the same."""
    return np.cumsum(np.diff(times, prepend=times[:1]) > SNAPSHOT_S)
