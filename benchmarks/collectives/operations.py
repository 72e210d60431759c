# SPDX-License-Identifier: Apache-2.0
"""The operations: what each moves, what must come out, how its bus bandwidth is counted.

`bytes` are counted as nccl-tests does: of the tensor, or of all ranks' blocks together where each
rank has a block (reduce_scatter, all_gather, gather, scatter, all_to_all). operation.cpp does for
C++ lanes what is said here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

KIB, MIB = 1024, 1024**2
PERIOD = 1021  # of the values that are verified; a prime, so that a block in the wrong place shows
ROOT = 0
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


def share(ranks: int) -> float:
    """The part of all blocks that a rank has from others."""
    return (ranks - 1) / ranks


def once(ranks: int) -> float:  # noqa: ARG001
    """All bytes cross the bus once."""
    return 1.0


OPERATIONS = {
    each.name: each
    for each in (
        Operation("all_reduce", lambda ranks: 2 * share(ranks), symmetric=True),
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


def splits(rank: int, ranks: int, elements: int) -> list[int]:
    """What `rank` sends to each rank in all_to_all_v, and gets from it.

    One share or three to each other rank in turn, what is left to itself.
    """
    shares = elements // (2 * ranks)
    counts = [shares * (3 if (rank + peer) % 2 else 1) for peer in range(ranks)]
    counts[rank] += elements - sum(counts)
    return counts


def layout(name: str, elements: int, ranks: int, pieces: int) -> tuple[int, int]:
    """Elements of input and output; no output where the operation works in place."""
    block = elements // ranks
    if name == "barrier":
        return 0, 0
    if name in {"reduce_scatter", "scatter"}:
        return elements, block
    if name in {"all_gather", "gather"}:
        return block, elements
    if name in {"all_to_all", "all_to_all_v", "send_recv"}:
        return elements, elements
    if name == "send_stream":
        return elements * pieces, elements * pieces
    return elements, 0


def values(elements: int) -> Array:
    """What rank 0 sends when a lane is verified; rank r sends r + 1 times as much."""
    return np.resize(np.arange(1, PERIOD + 1, dtype=np.float32), elements)


def expected(name: str, rank: int, ranks: int, elements: int, pieces: int) -> Array | None:
    """What must come out on `rank`; None if nothing does."""
    if name == "barrier" or (name in {"reduce", "gather"} and rank != ROOT):
        return None
    if name == "send_stream" and rank % 2 == 0:
        return None
    total = np.float32(ranks * (ranks + 1) // 2)
    peer = np.float32((rank ^ 1) + 1)
    sent, block = values(elements), elements // ranks
    own = sent[rank * block : (rank + 1) * block]
    senders = [np.float32(sender + 1) for sender in range(ranks)]
    if name in {"all_reduce", "reduce"}:
        return sent * total
    if name == "reduce_scatter":
        return own * total
    if name in {"all_gather", "gather"}:
        return np.concatenate([sent[:block] * sender for sender in senders])
    if name == "all_to_all":
        return np.concatenate([own * sender for sender in senders])
    if name == "all_to_all_v":
        ends = [np.cumsum([0, *splits(sender, ranks, elements)]) for sender in range(ranks)]
        return np.concatenate(
            [sent[end[rank] : end[rank + 1]] * (i + 1) for i, end in enumerate(ends)]
        )
    if name in {"send_recv", "send_stream"}:
        return values(elements * pieces) * peer
    return own if name == "scatter" else sent
