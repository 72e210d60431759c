# SPDX-License-Identifier: Apache-2.0
"""Which backward passes average, where a program accumulates gradients over several."""

from __future__ import annotations

from collections.abc import Callable

from farandole import arguments
from farandole.errors import InvalidArgument, sentences


class Accumulation:
    """The last of each ``steps`` backward passes averages."""

    def __init__(self, steps: object) -> None:
        """Keep ``steps``.

        Raises:
            InvalidArgument: it is no number of at least 1.
        """
        name = "gradient_accumulation_steps"
        self._steps = arguments.int_of("DistributedDataParallel", name, steps)
        if self._steps < 1:
            raise InvalidArgument(
                sentences(
                    "accumulation-steps",
                    f"DistributedDataParallel got gradient_accumulation_steps={self._steps}.",
                    "it is the number of backward passes between two averages.",
                    "pass a number of at least 1.",
                )
            )

    def is_last(self, count_passes: Callable[[], int]) -> bool:
        """Whether the next backward is the last of its steps; ``count_passes``: those so far."""
        return self._steps == 1 or (count_passes() + 1) % self._steps == 0
