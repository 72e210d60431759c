# SPDX-License-Identifier: Apache-2.0
"""The steps that all ranks have recorded, side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from farandole.profiler.steps import RankSteps
from farandole.profiler.system_metrics import Floats


class CommonSteps:
    """Steps of training by their numbers. Of a step that was done again, the last is taken."""

    def __init__(self, ranks: list[RankSteps]) -> None:
        self.ranks = [each for each in ranks if each.of_mode("TRAIN").any()]
        found = [_last_places(each) for each in self.ranks]
        shared = [numbers for numbers, _ in found] or [np.array([], dtype=np.int64)]
        # Without the first one, which has what is done once.
        self.numbers = functools.reduce(np.intersect1d, shared)[1:]
        self._places = [places[np.searchsorted(all_of, self.numbers)] for all_of, places in found]

    def __len__(self) -> int:
        return len(self.numbers)

    def of(self, values: Callable[[RankSteps], Floats]) -> Floats:
        """A row for each rank, a column for each step."""
        rows = [values(each)[places] for each, places in zip(self.ranks, self._places, strict=True)]
        return np.array(rows)

    def part(self, name: str) -> Floats:
        """Microseconds of one of `steps.PARTS`."""
        return self.of(lambda rank: rank.parts_us[name])

    def loop_us(self) -> float:
        """A step with the wait for its batch, in the median of steps and ranks."""
        return float(np.median(self.of(lambda rank: rank.loop_us)))


def _last_places(rank: RankSteps) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of its steps of training, ascending, and where each was done last."""
    places = np.flatnonzero(rank.of_mode("TRAIN"))[::-1]
    numbers, firsts = np.unique(rank.numbers[places], return_index=True)
    return numbers, places[firsts]
