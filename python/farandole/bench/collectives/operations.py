# SPDX-License-Identifier: Apache-2.0
"""The operations: what they take and give, and how their bandwidth is counted.

As nccl-tests does (doc/PERFORMANCE.md there): algbw = bytes / time and busbw = algbw * factor,
where bytes are those of the tensor, or of all ranks' blocks together where each rank has a block.
The factor makes busbw the speed of the slowest link, which does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def share(ranks: int) -> float:
    """The part of all blocks that a rank has from others: (n - 1) / n."""
    return (ranks - 1) / ranks


def once(_: int) -> float:
    """All bytes cross the bus once."""
    return 1.0


def twice_the_share(ranks: int) -> float:
    """A reduce_scatter and an all_gather."""
    return 2 * share(ranks)


@dataclass(frozen=True)
class Operation:
    """One collective."""

    name: str
    factor: Callable[[int], float]
    """busbw / algbw for n ranks."""
    takes_blocks: bool = False
    """The input holds one block for each rank."""
    gives_blocks: bool = False
    """The output does."""
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    least_ranks: int = 1

    @property
    def has_blocks(self) -> bool:
        """Whether bytes divide into one block for each rank."""
        return self.takes_blocks or self.gives_blocks

    def count_of(self, size: int, element_bytes: int, ranks: int) -> int:
        """The elements in ``size`` bytes: whole blocks, and at least one element in each."""
        unit = ranks if self.has_blocks else 1
        return max(1, size // (element_bytes * unit)) * unit

    def input_elements(self, count: int, ranks: int) -> int:
        """Of the input of each rank, if ``count`` elements are counted."""
        return count // ranks if self.gives_blocks and not self.takes_blocks else count

    def output_elements(self, count: int, ranks: int) -> int:
        """Of the output; the input itself where the operation works in place."""
        return count // ranks if self.takes_blocks and not self.gives_blocks else count


def bandwidths(operation: Operation, size: int, time_us: float, ranks: int) -> tuple[float, float]:
    """Algbw and busbw in GB/s, which are 1e9 bytes a second."""
    algbw = size / time_us / 1e3
    return algbw, algbw * operation.factor(ranks)


OPERATIONS = {
    each.name: each
    for each in (
        Operation("all_reduce", twice_the_share, reduces=True, in_place=True),
        Operation("reduce_scatter", share, takes_blocks=True, reduces=True),
        Operation("all_gather", share, gives_blocks=True),
        Operation("broadcast", once, rooted=True, in_place=True),
        Operation("reduce", once, reduces=True, rooted=True, in_place=True),
        Operation("gather", share, gives_blocks=True, rooted=True),
        Operation("scatter", share, takes_blocks=True, rooted=True),
        Operation("all_to_all", share, takes_blocks=True, gives_blocks=True),
        Operation("send_recv", once, least_ranks=2),
    )
}
