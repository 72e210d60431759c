# SPDX-License-Identifier: Apache-2.0
"""What each operation takes and gives: the one definition, for benchmarks and tests."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Sent = Callable[[int], Array]  # the input of each rank
Splits = Callable[[int], Sequence[int]]  # what each rank sends to each rank in all_to_all_v

ROOT = 0
PERIOD = 1021  # of the values that are verified; a prime, so that a block in the wrong place shows


def result(
    name: str, sent: Sent, rank: int, ranks: int, *, root: int = ROOT, splits: Splits | None = None
) -> Array | None:
    """What must come out on `rank`; None if nothing does. Pure: any numpy dtype, no network."""
    if name in {"reduce", "gather"} and rank != root:
        return None
    if name == "send_stream" and rank % 2 == 0:
        return None

    def block(sender: int, array: Array) -> Array:
        """The part for `rank`."""
        ends = np.cumsum(splits(sender))[:-1] if splits else ranks
        return np.split(array, ends)[rank]

    everyone = (sent(sender) for sender in range(ranks))
    results: dict[str, Callable[[], Array | None]] = {
        "all_reduce": lambda: reduce(np.add, everyone),
        "reduce_scatter": lambda: block(rank, reduce(np.add, everyone)),
        "all_gather": lambda: np.concatenate([*everyone]),
        "broadcast": lambda: sent(root),
        "scatter": lambda: block(root, sent(root)),
        "all_to_all": lambda: np.concatenate([block(i, each) for i, each in enumerate(everyone)]),
        "send_recv": lambda: sent(rank ^ 1),
        "barrier": lambda: None,
    }
    same = {"reduce": "all_reduce", "gather": "all_gather", "send_stream": "send_recv"}
    same["all_to_all_v"] = "all_to_all"
    return results[same.get(name, name)]()


def layout(name: str, elements: int, ranks: int, pieces: int) -> tuple[int, int]:
    """Elements of input and output; no output where the operation works in place."""
    block = elements // ranks
    sizes = {
        "barrier": (0, 0),
        "reduce_scatter": (elements, block),
        "scatter": (elements, block),
        "all_gather": (block, elements),
        "gather": (block, elements),
        "send_stream": (elements * pieces, elements * pieces),
    }
    is_in_place = name in {"all_reduce", "broadcast", "reduce"}
    return sizes.get(name, (elements, 0 if is_in_place else elements))


def uneven_splits(rank: int, ranks: int, elements: int) -> list[int]:
    """What `rank` sends to each rank in all_to_all_v of the benchmark, and gets from it.

    One share or three to each other rank in turn, what is left to itself.
    """
    shares = elements // (2 * ranks)
    counts = [shares * (3 if (rank + peer) % 2 else 1) for peer in range(ranks)]
    counts[rank] += elements - sum(counts)
    return counts


def values(elements: int) -> Array:
    """What rank 0 sends when a lane is verified; rank r sends r + 1 times as much."""
    return np.resize(np.arange(1, PERIOD + 1, dtype=np.float32), elements)


def expected(name: str, rank: int, ranks: int, elements: int, pieces: int) -> Array | None:
    """What must come out on `rank` when a lane is verified."""
    numbers = values(layout(name, elements, ranks, pieces)[0])

    def sent(sender: int) -> Array:
        return np.multiply(numbers, sender + 1, dtype=np.float32)

    uneven = name == "all_to_all_v"
    splits = (lambda sender: uneven_splits(sender, ranks, elements)) if uneven else None
    return result(name, sent, rank, ranks, splits=splits)
