# SPDX-License-Identifier: Apache-2.0
"""What ranks send when a lane is verified, and what must come out, in every dtype.

Sums, products and extrema of the values are exact in every dtype, in any order of the ranks, so
results are compared with ==. Only averages of floating point get a tolerance: some libraries divide
before they add. Values repeat after a prime number of elements, so that a block in the wrong place
shows, and so that the expected result of gigabytes is known from one period.
"""

from __future__ import annotations

import torch
from torch import Tensor

from farandole.bench.collectives.operations import Operation

PERIOD = 1021
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
DTYPES_OF_NCCL_TESTS = {"float": "float32", "double": "float64", "half": "float16"}

Part = tuple[Tensor, int]
"""A period of values, and where in it this part of a result begins."""

_LARGEST = 7  # value of a sum
_EXACT = {  # the dtype counts up to this without a gap
    torch.int8: 127,
    torch.uint8: 255,
    torch.bfloat16: 2**8,
    torch.float16: 2**11,
}
_CHUNK_PERIODS = 1024


def sent(operation: Operation, op: str, rank: int, ranks: int, dtype: torch.dtype) -> Tensor:
    """One period of what a rank sends, in float64."""
    place = torch.arange(PERIOD)
    if not operation.reduces:
        return (1 + (place + 37 * rank) % 101).double()
    turn = (place + rank) % ranks
    if op == "prod":
        return 1.0 + (turn < place % 6).double()  # at most five factors of 2
    if op in ("min", "max"):
        return ((7 * place + 5 * rank) % 101).double()
    terms = min(ranks, _EXACT.get(dtype, 2**24) // _LARGEST)  # ranks that send something but 0
    return torch.where(turn < terms, 1 + place % _LARGEST, 0).double()


def reduced(operation: Operation, op: str, ranks: int, dtype: torch.dtype) -> Tensor:
    """One period of the reduction of what all ranks send, in float64."""
    all_sent = torch.stack([sent(operation, op, rank, ranks, dtype) for rank in range(ranks)])
    if op == "prod":
        return all_sent.prod(0)
    if op in ("min", "max"):
        return all_sent.amin(0) if op == "min" else all_sent.amax(0)
    result = all_sent.sum(0)
    if op == "avg":
        result /= ranks
        return result if dtype.is_floating_point else result.trunc()
    return result


def expected(
    operation: Operation, op: str, rank: int, ranks: int, dtype: torch.dtype, count: int, root: int
) -> list[Part]:
    """The parts of the result on ``rank``, all of one length; none where nothing comes out."""
    if operation.rooted and operation.name in ("reduce", "gather") and rank != root:
        return []
    block = count // ranks

    def values(sender: int) -> Tensor:
        return sent(operation, op, sender, ranks, dtype)

    if operation.reduces:
        start = rank * block if operation.takes_blocks else 0
        return [(reduced(operation, op, ranks, dtype), start)]
    if operation.name in ("all_gather", "gather"):
        return [(values(sender), 0) for sender in range(ranks)]
    if operation.name == "all_to_all":
        return [(values(sender), rank * block) for sender in range(ranks)]
    if operation.name == "send_recv":
        return [(values((rank - 1) % ranks), 0)]
    return [(values(root), rank * block if operation.takes_blocks else 0)]


def tolerance(op: str, ranks: int, dtype: torch.dtype) -> float:
    """The relative error that is allowed."""
    if op != "avg" or not dtype.is_floating_point:
        return 0.0
    return ranks * torch.finfo(dtype).eps


def fill(tensor: Tensor, period: Tensor) -> None:
    """Repeats the values through the tensor."""
    unit = _unit(period, 0, tensor)
    for part in torch.split(tensor, len(unit)):
        part.copy_(unit[: len(part)])


def spoil(tensor: Tensor) -> None:
    """Fills it with what no result has."""
    tensor.fill_(255 if tensor.dtype == torch.uint8 else -1)


def wrong_elements(found: Tensor, parts: list[Part], allowed: float) -> int:
    """How many elements differ from the parts; a NaN does."""
    if not parts:
        return 0
    wrong = 0
    for block, (period, start) in zip(found.chunk(len(parts)), parts, strict=True):
        unit = _unit(period, start, block)
        for part in torch.split(block, len(unit)):
            right = unit[: len(part)]
            if allowed:
                is_right = torch.isclose(part.double(), right.double(), rtol=allowed, atol=0)
                wrong += int((~is_right).sum())
            else:
                wrong += int((part != right).sum())
    return wrong


def _unit(period: Tensor, start: int, like: Tensor) -> Tensor:
    """Several periods from ``start`` on; as many as ``like`` needs, or a few MiB."""
    periods = min(_CHUNK_PERIODS, -(-len(like) // PERIOD))
    return period.roll(-(start % PERIOD)).to(like.dtype).to(like.device).repeat(max(1, periods))
