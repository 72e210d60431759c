# SPDX-License-Identifier: Apache-2.0
"""What one run measures. The same on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farandole.bench.collectives.operations import OPERATIONS, Operation
from farandole.bench.collectives.values import DTYPES

FEWEST_ITERATIONS, MOST_ITERATIONS = 20, 1000


@dataclass(frozen=True)
class Case:
    """One line of the table, for each lane."""

    operation: Operation
    op: str
    """The reduction; "none" where nothing is reduced."""
    dtype: str
    count: int
    """Elements as nccl-tests counts them."""

    @property
    def bytes(self) -> int:
        """Of all these elements."""
        return self.count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Plan:
    """The checked options."""

    operations: list[str]
    dtypes: list[str]
    ops: list[str]
    sizes: list[int]
    peers: list[str]
    peers_by_default: bool
    """Whether peers that cannot be measured are left out with a line, rather than an error."""
    root: int
    warmup: int
    iterations: int
    """Of each lane and case; 0: as many as take ``seconds``, within limits."""
    seconds: float
    rounds: int
    check: bool
    device: str

    def cases(self, ranks: int) -> Iterator[Case]:
        """All of them; sizes that are rounded to the same count are measured once."""
        for name in self.operations:
            operation = OPERATIONS[name]
            for op in self.ops if operation.reduces else ["none"]:
                for dtype in self.dtypes:
                    element_bytes = DTYPES[dtype].itemsize
                    counts = (operation.count_of(size, element_bytes, ranks) for size in self.sizes)
                    for count in dict.fromkeys(counts):
                        yield Case(operation, op, dtype, count)
