# SPDX-License-Identifier: Apache-2.0
"""Which backward passes average, where a program accumulates gradients over several."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from farandole import arguments
from farandole.errors import InvalidArgument, sentences


class Accumulation:
    """Counts backward passes. The last one of each ``steps`` averages.

    Threads: count_backward_of() comes from the caller's, the counting from autograd's.
    """

    def __init__(self, steps: object) -> None:
        """Start with the first of ``steps``.

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
        self._passes = 0
        self._graph_task = -1  # of the last backward that was counted

    def ends_with_next_backward(self) -> bool:
        """Whether the next backward is the last of its steps."""
        return (self._passes + 1) % self._steps == 0

    def count_backward_of(self, outputs: Iterable[Tensor]) -> None:
        """Count a backward, once, when it reaches one of a forward's outputs."""
        if self._steps == 1:
            return
        for output in outputs:
            if output.requires_grad:
                output.register_hook(self._count)  # type: ignore[no-untyped-call]

    def _count(self, _gradient: Tensor) -> None:
        graph_task = torch._C._current_graph_task_id()
        if graph_task != self._graph_task:
            self._graph_task = graph_task
            self._passes += 1
