# SPDX-License-Identifier: Apache-2.0
"""Bus bandwidth of collectives, as nccl-tests defines it (its doc/PERFORMANCE.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from farandole.bench.sizes import MIB, size_text
from torch import Tensor

from benchmarks.gpu.session import Session, median_row, ratio_row
from benchmarks.harness.results import Row

SIZES = {"full": [64 * 1024, MIB, 16 * MIB, 64 * MIB, 256 * MIB], "quick": [64 * 1024]}
MOST_BYTES_A_ROUND = 512 * MIB  # of one lane
MOST_ITERATIONS = 50
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Operation:
    """A collective: (input, output, group), where the larger one has the bytes that count."""

    name: str
    run: Callable[[Tensor, Tensor, dist.ProcessGroup], object]
    share_in: bool  # whether the input is a share of the bytes, a rank's
    share_out: bool
    bus_factor: Callable[[int], float]  # bus bandwidth over bytes / time


OPERATIONS = [
    Operation(
        "all_reduce",
        lambda _, whole, group: dist.all_reduce(whole, group=group),
        False,
        False,
        lambda n: 2 * (n - 1) / n,
    ),
    Operation(
        "all_gather",
        lambda own, whole, group: dist.all_gather_into_tensor(whole, own, group=group),
        True,
        False,
        lambda n: (n - 1) / n,
    ),
    Operation(
        "reduce_scatter",
        lambda whole, own, group: dist.reduce_scatter_tensor(own, whole, group=group),
        False,
        True,
        lambda n: (n - 1) / n,
    ),
]


def measure(session: Session) -> list[Row]:
    """One row an operation, size and lane; raises RuntimeError if a result is wrong."""
    if session.ranks == 1:
        session.say("bandwidth: left out, one rank moves nothing")
        return []
    rows = []
    for operation in OPERATIONS:
        for size in SIZES[session.size]:
            rows += measure_one(session, operation, size)
    return rows


def measure_one(session: Session, operation: Operation, size: int) -> list[Row]:
    """Both lanes."""
    groups = {"farandole": session.ours, "torch_nccl": session.peer}
    count = size // DTYPE.itemsize // session.ranks * session.ranks
    shares = [operation.share_in, operation.share_out]
    given, taken = (
        torch.zeros(count // session.ranks if share else count, dtype=DTYPE, device=session.device)
        for share in shares
    )
    bodies = {lane: partial(operation.run, given, taken, group) for lane, group in groups.items()}
    for lane, body in bodies.items():
        verify(session, operation, given, taken, f"{lane}, {operation.name}", body)
    given.zero_()  # summing in place must not overflow
    taken.zero_()
    iterations = max(2, min(MOST_ITERATIONS, MOST_BYTES_A_ROUND // size))
    times = session.device_ms(bodies, iterations)
    for lane, body in bodies.items():
        verify(session, operation, given, taken, f"{lane}, {operation.name}", body)
    rows = [make_row(session, operation, size, lane, times) for lane in bodies]
    speeds = ", ".join(f"{row['lane']} {row['busbw_gb_s']:.1f} GB/s" for row in rows)
    session.say(f"{operation.name}, {size_text(size)}: {speeds}")
    return rows


def numbers(rank: int, count: int, device: torch.device) -> Tensor:
    """Small whole numbers, also as sums over ranks exact in bfloat16."""
    return ((torch.arange(count, device=device) + rank) % 3).to(DTYPE)


def verify(
    session: Session,
    operation: Operation,
    given: Tensor,
    taken: Tensor,
    what: str,
    body: Callable[[], object],
) -> None:
    """Runs it once on numbers that are known."""
    rank, ranks, device = session.rank, session.ranks, session.device
    everyone = [numbers(each, given.numel(), device) for each in range(ranks)]
    given.copy_(everyone[rank])
    if operation.name == "all_reduce":
        taken.copy_(given)
    body()
    if operation.name == "all_gather":
        wanted = torch.cat(everyone)
    else:
        wanted = torch.stack(everyone).sum(0)
        if operation.name == "reduce_scatter":
            wanted = wanted.chunk(ranks)[rank]
    session.check(int((taken != wanted).sum()), what)


def make_row(
    session: Session, operation: Operation, size: int, lane: str, times: dict[str, list[float]]
) -> Row:
    """See docs/benchmarks.md."""
    row: Row = {"part": "bandwidth", "operation": operation.name, "lane": lane, "bytes": size}
    row |= {"dtype": "bfloat16", **median_row([1e3 * each for each in times[lane]], "us")}
    row["algbw_gb_s"] = round(size / row["median_us"] / 1e3, 3)
    row["busbw_gb_s"] = round(row["algbw_gb_s"] * operation.bus_factor(session.ranks), 3)
    row["verified"] = True
    if lane != "torch_nccl":
        row |= ratio_row(times[lane], times["torch_nccl"], "of_peer")
    return {**row, **session.fields()}
