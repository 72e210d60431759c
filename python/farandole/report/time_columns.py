# SPDX-License-Identifier: Apache-2.0
"""Values over time in few columns, so that an hour is as wide as a minute."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farandole.profiler.job_summary import JobTimes
from farandole.profiler.system_metrics import Floats

MOST_COLUMNS = 600


@dataclass(frozen=True)
class TimeColumns:
    """Columns of equal time from the start of a job to its end."""

    start_s: float
    """Since 1970."""
    column_s: float
    count: int

    def to_json(self) -> dict[str, float]:
        """As figures have them."""
        return {"start_s": self.start_s, "column_s": self.column_s, "count": self.count}

    def mean(self, times_s: Floats, values: Floats) -> Floats:
        """Of the values in each column; NaN where there is none."""
        places = self._places(times_s)
        counts = np.bincount(places, minlength=self.count)
        sums = np.bincount(places, weights=values, minlength=self.count)
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, sums / counts, np.nan)

    def largest(self, times_s: Floats, values: Floats) -> Floats:
        """In each column; NaN where there is none."""
        found = np.full(self.count, -np.inf)
        np.maximum.at(found, self._places(times_s), values)
        return np.where(np.isfinite(found), found, np.nan)

    def _places(self, times_s: Floats) -> npt.NDArray[np.int64]:
        places = (np.asarray(times_s) - self.start_s) / self.column_s
        return np.clip(places.astype(np.int64), 0, self.count - 1)


def columns_of(times: JobTimes, interval_s: float) -> TimeColumns:
    """Up to MOST_COLUMNS, each with two values where there is one in each interval."""
    if not math.isfinite(times.start_s):
        return TimeColumns(0.0, 1.0, 1)
    duration_s = max(1e-6, times.end_s - times.start_s)
    count = max(1, min(MOST_COLUMNS, int(duration_s / (2 * max(1e-6, interval_s)))))
    return TimeColumns(times.start_s, duration_s / count, count)


def rounded(values: Floats) -> list[float | None]:
    """For JSON, which has no NaN: four digits."""
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in values]
