# SPDX-License-Identifier: Apache-2.0
"""The steps that all ranks have recorded, side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from farandole.profiler.steps import RankSteps
from farandole.profiler.system_metrics import Floats


class CommonSteps:
    """Steps of training by their numbers. Of a step that was done again, the last is taken."""

    def __init__(self, ranks: list[RankSteps]) -> None:
        self.ranks = [each for each in ranks if each.of_mode("TRAIN").any()]
        places = [
            {int(each.numbers[i]): int(i) for i in np.flatnonzero(each.of_mode("TRAIN"))}
            for each in self.ranks
        ]
        shared = set.intersection(*map(set, places)) if places else set()
        self.numbers = sorted(shared)[1:]  # the first one has what is done once
        self._places = [[each[number] for number in self.numbers] for each in places]

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
