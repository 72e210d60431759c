# SPDX-License-Identifier: Apache-2.0
"""torch.profiler shows the work on buckets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from farandole import DistributedDataParallel
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import ranks
from ddp_models import Layers
from ddp_oracle import batch, seeded

NAME = "farandole:bucket_reduction"


def trace_of(ddp: nn.Module, rank: int) -> list[dict[str, Any]]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        for step in range(2):
            ddp(batch(rank, step, 4, 8)).square().mean().backward()
    assert any(event.key == NAME for event in profile.key_averages())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("name") == NAME]


def profiled(rank: int, world_size: int) -> None:
    for hooked in (False, True):
        ddp = DistributedDataParallel(seeded(Layers), bucket_cap_mb=0.0005)
        if hooked:
            ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        ddp(batch(rank, 0, 4, 8)).sum().backward()  # without a profiler
        plan = ddp._replica.plan().buckets  # type: ignore[union-attr]
        assert len(plan) > 1
        events = trace_of(ddp, rank)
        # A hook is started, and its result taken.
        is_ours = ranks.share_memory() and not hooked
        assert len(events) == len(plan) * (2 if is_ours else 4)
        for bucket, planned in enumerate(plan):
            of_bucket = [event for event in events if int(event["args"]["bucket"]) == bucket]
            assert len(of_bucket) == len(events) // len(plan)
            assert all(int(event["args"]["bytes"]) == planned.bytes for event in of_bucket)
        ddp(batch(rank, 0, 4, 8)).sum().backward()  # and without one again


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_the_profiler_shows_bucket_reductions(backend: str) -> None:
    ranks.run(profiled, 2, setup=ranks.Setup(backend=backend))
