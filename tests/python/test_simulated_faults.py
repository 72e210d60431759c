# SPDX-License-Identifier: Apache-2.0
"""The race detector finds each wait of a stream that a training step could forget."""

from __future__ import annotations

import farandole
import torch
import torch.distributed as dist

import ranks
import sim
from ddp_oracle import batch, seeded
from test_simulated_ddp import Branches, square

pytestmark = sim.NEEDS_NCCL


def with_each_fault(rank: int, world_size: int) -> tuple[list[str], list[bool]]:
    """The waits of a step, and whether the lack of each is found."""
    ddp = farandole.DistributedDataParallel(seeded(Branches), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    inputs, state = batch(rank, 0, 4, 8), torch.zeros(64)

    def step() -> None:
        inputs.add_(1)
        ddp.zero_grad()
        square(ddp(inputs)).backward()
        optimizer.step()
        work = dist.all_reduce(state.mul_(0.5), async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(state.add_(1), 0)
        parts = [torch.zeros(64) for _ in range(world_size)]
        dist.all_gather(parts, state.mul_(2))
        torch.cat(parts).sum()
        sim.synchronize()

    sim.throw_races(False)
    for _ in range(3):
        step()
    sim.take_stream_waits()
    step()
    waits = sim.take_stream_waits()
    assert sim.take_reports() == []
    found = []
    for fault in range(len(waits)):
        sim.leave_out_wait_after(fault)
        step()
        found.append(bool(sim.take_reports()))
        step()  # reports of what the fault has left
        sim.take_reports()
    return waits, found


def test_the_lack_of_each_wait_is_found() -> None:
    for waits, found in ranks.run(with_each_fault, 2, setup=ranks.Setup(backend="sim-eager")):
        assert sum(found) >= 10
        for fault, was_found in enumerate(found):
            # A wait of the same streams before or after it may order as much.
            neighbours = waits[max(fault - 1, 0) : fault] + waits[fault + 1 : fault + 2]
            is_covered = waits[fault] in neighbours
            assert was_found or is_covered, (fault, waits, found)
