# SPDX-License-Identifier: Apache-2.0
"""What the profiler sees of a device: spans of ranks, kernels, and what NVML says of GPUs."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import profiler
from farandole.profiler import Dataloader, LowGPUUtilization, Profile
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rank_set import LeftOut, RankSet, World

STEPS = 8
INTERVAL_MS = 100
SAMPLES = 20  # of a GPU, that rules judge
DIMENSIONS = {"GPUUtilization", "GPUMemoryUtilization", "GPUPowerWatts", "GPUThrottleReasons"}


def _trainer(world: World) -> Any:
    """A function that takes a step."""
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(world.type)
    model = farandole.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x.to(world.type)).square().mean().backward()
        optimizer.step()

    return step


def _records(rank: int, world: World, folder: str) -> None:
    step = _trainer(world)
    profiler.start(folder, system_interval_ms=None)
    for _ in range(STEPS):
        step(torch.randn(16, 64))
    profiler.stop()
    dist.barrier()


def test_ranks_record_their_steps(group: RankSet, tmp_path: Path) -> None:
    group.run(_records, str(tmp_path))
    profile = Profile(tmp_path)
    assert not profile.problems()
    assert len(profile.timeline.ranks()) == group.world.size
    for rank in profile.timeline.ranks():
        assert len(rank.spans("forward")) == STEPS
        assert len(rank.spans("backward")) == STEPS
        assert len(rank.spans("bucket")) >= STEPS
        assert all(span.duration_us >= 0 for span in rank.spans())


def _records_operators(rank: int, world: World, folder: str) -> None:
    if world.type == "sim":
        raise LeftOut("torch.profiler does not see the simulated device")
    step = _trainer(world)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    profiler.start(folder, schedule=schedule, operators=True, system_interval_ms=None)
    for _ in range(STEPS):
        step(torch.randn(16, 64))
        profiler.step()
    profiler.stop()
    dist.barrier()


def test_kernels_are_beside_the_steps(group: RankSet, tmp_path: Path) -> None:
    group.run(_records_operators, str(tmp_path))
    kernels = profiler.top_operators(tmp_path, device="cuda")
    assert kernels
    assert all(kernel.calls > 0 for kernel in kernels)
    assert sum(kernel.self_us for kernel in kernels) > 0
    trace = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(tmp_path, trace)
    with gzip.open(trace) as file:
        events = json.load(file)
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert {"kernel", "bucket", "backward"} <= {event.get("cat") for event in events}


class Images(Dataset[Tensor]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self._pause_s)
        return torch.zeros(1)


def _keeps_busy(rank: int, world: World, folder: str, pause_s: float) -> None:
    """Matrix products for as long as a few samples of the monitor take."""
    if world.type == "sim":
        raise LeftOut("NVML does not see the simulated device")
    if world.is_staged or world.sharing:
        raise LeftOut("the rank alone on the GPU shows it")
    step = _trainer(world)
    matrix = torch.randn(4096, 4096, device=world.type)
    profiler.start(folder, system_interval_ms=INTERVAL_MS)
    end = time.monotonic() + (SAMPLES + 10) * INTERVAL_MS / 1000
    for _ in DataLoader(Images(pause_s), 1):
        for _ in range(4):
            matrix = (matrix @ matrix).tanh()
        step(torch.randn(16, 64))
        torch.cuda.synchronize()
        if time.monotonic() > end:
            break
    profiler.stop()
    dist.barrier()


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_a_gpu_that_waits_for_data_is_found(group: RankSet, tmp_path: Path, pause_s: float) -> None:
    group.run(_keeps_busy, str(tmp_path), pause_s)
    profile = Profile(tmp_path)
    seen = {
        dimension: values
        for dimension in DIMENSIONS
        for values in profile.metrics.of(dimension).values()
    }
    assert set(seen) == DIMENSIONS
    assert all(len(series.values) > SAMPLES for series in seen.values())
    assert seen["GPUMemoryUtilization"].values.min() > 0
    assert 10 < seen["GPUPowerWatts"].values.mean() < 2000
    low = LowGPUUtilization(patience=SAMPLES, window=SAMPLES).evaluate(profile)
    late = Dataloader(patience=5).evaluate(profile)
    waits = late.figures["waiting_percent"]["rank 0"]
    assert low.fired == (waits > 10) == (pause_s > 0), (low, late)
