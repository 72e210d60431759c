# SPDX-License-Identifier: Apache-2.0
"""What a call of a collective costs the host, which only puts it on a stream."""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.session import Session, median_row, ratio_row
from benchmarks.harness.results import Row

ELEMENTS = 1024
ITERATIONS = {"full": 200, "quick": 5}  # in a round; fewer than a stream holds


def called(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """The current stream waits for it."""
    dist.all_reduce(tensor, group=group)


def launched(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Nobody waits for it."""
    dist.all_reduce(tensor, group=group, async_op=True)


WAYS = {"all_reduce": called, "all_reduce, async_op": launched}


def measure(session: Session) -> list[Row]:
    """One row a way and lane."""
    groups = {"farandole": session.ours, "torch_nccl": session.peer}
    # Streams of the two groups are not ordered, so each has a tensor of its own.
    tensors = {lane: torch.zeros(ELEMENTS, device=session.device) for lane in groups}
    rows = []
    for name, way in WAYS.items():
        bodies = {lane: partial(way, tensors[lane], group) for lane, group in groups.items()}
        for body in bodies.values():
            body()  # connects
        times = session.host_us(bodies, ITERATIONS[session.size])
        for lane, own in times.items():
            row: Row = {"part": "launch", "operation": name, "lane": lane}
            row |= {"bytes": tensors[lane].nbytes, **median_row(own, "us")}
            if lane != "torch_nccl":
                row |= ratio_row(own, times["torch_nccl"], "of_peer")
            rows.append({**row, **session.fields()})
        medians = ", ".join(f"{row['lane']} {row['median_us']:.1f} us" for row in rows[-2:])
        session.say(f"launch, {name}: {medians}")
    return rows
