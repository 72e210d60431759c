# SPDX-License-Identifier: Apache-2.0
"""The operations: their sizes, and how their bus bandwidth is counted.

`bytes` are counted as nccl-tests does: of the tensor, or of all ranks' blocks together where each
rank has a block (reduce_scatter, all_gather, gather, scatter, all_to_all). operation.cpp does for
C++ lanes what is said here and in definition.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from farandole.bench.collectives.operations import once, share, twice_the_share
from farandole.bench.sizes import KIB, MIB

ALL_REDUCE_SIZES = [4**power for power in range(1, 14)]  # 4 B to 64 MiB
SIZES = [KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
STREAM_BYTES, STREAM_MESSAGES = 16 * MIB, 16  # most that send_stream has in flight


@dataclass(frozen=True)
class Operation:
    """One operation of the benchmark."""

    name: str
    bus: Callable[[int], float]  # bus bandwidth / (bytes / time) for n ranks, as nccl-tests has it
    has_blocks: bool = False
    symmetric: bool = False  # whether symmetric memory changes anything
    rooted: bool = False  # ranks that only send to or from the root may run ahead of others
    pairs: bool = False  # between neighbours, rank 2k and rank 2k + 1

    def fitting(self, size: int, ranks: int) -> int:
        """The bytes nearest below `size` that divide into whole blocks."""
        unit = 4 * (2 * ranks if self.has_blocks else 1)
        return 0 if self.name == "barrier" else max(size // unit, 1) * unit

    def pieces(self, size: int) -> int:
        """Messages that one call has in flight."""
        if self.name != "send_stream":
            return 1
        return max(2, min(STREAM_MESSAGES, STREAM_BYTES // size))

    def messages(self, size: int) -> int:
        """How many times one call does what a row tells the time of: ping and pong are two."""
        return 2 if self.name == "send_recv" else self.pieces(size)

    def sizes(self) -> list[int]:
        """Those measured by default."""
        if self.name == "barrier":
            return [0]
        return ALL_REDUCE_SIZES if self.name == "all_reduce" else SIZES


OPERATIONS = {
    each.name: each
    for each in (
        Operation("all_reduce", twice_the_share, symmetric=True),
        Operation("reduce_scatter", share, has_blocks=True, symmetric=True),
        Operation("all_gather", share, has_blocks=True, symmetric=True),
        Operation("broadcast", once, symmetric=True, rooted=True),
        Operation("reduce", once, rooted=True),
        Operation("gather", share, has_blocks=True, rooted=True),
        Operation("scatter", share, has_blocks=True, rooted=True),
        Operation("all_to_all", share, has_blocks=True),
        Operation("all_to_all_v", lambda ranks: 1 - 1 / (2 * ranks), has_blocks=True),
        Operation("barrier", once),
        Operation("send_recv", once, pairs=True),
        Operation("send_stream", once, pairs=True),
    )
}
