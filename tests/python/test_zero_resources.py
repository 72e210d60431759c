# SPDX-License-Identifier: Apache-2.0
"""What a step makes and keeps: no segments, threads and tensors after the second, and few bytes.

And what a model and its optimizer leave behind: nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim import LAMB, LARS
from torch import nn, optim
from torch.profiler import ProfilerActivity, profile

import ranks

LARGE_BYTES = 4096
MODES = ["full", "shard"]


def million() -> nn.Module:
    """1.0 M parameters, in pieces that no number of ranks divides."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(301, 999), nn.Tanh(), nn.Linear(999, 699), nn.Linear(699, 7))


def segments() -> set[str]:
    """What this process maps of memory that it shares with others."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[0] for line in maps if "memfd:" in line or "/dev/shm/" in line}


def threads() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


def large_allocations(call: Callable[[], Any]) -> list[int]:
    """Bytes of each tensor memory that ``call`` makes, if not small."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    assert watched.profiler is not None
    events = watched.profiler.kineto_results.events()
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() >= LARGE_BYTES]


def makes_nothing(rank: int, world_size: int, gradients: Any) -> None:
    assert large_allocations(lambda: torch.zeros(LARGE_BYTES // 4)) == [LARGE_BYTES]
    cases: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
        (optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (optim.AdamW, {"amsgrad": True}),
        (LAMB, {}),
        (LARS, {"lr": 0.1}),
    ]
    for optimizer, options in cases:
        model = DistributedDataParallel(million())
        sharded = ZeroRedundancyOptimizer(
            model.parameters(), optimizer, gradients=gradients, **options
        )

        def backward(model: nn.Module = model, sharded: optim.Optimizer = sharded) -> None:
            sharded.zero_grad()
            model(torch.ones(2, 301)).square().mean().backward()

        for _ in range(2):
            backward()
            sharded.clip_grad_norm_(1.0)
            sharded.step()
        before = segments(), threads()
        assert before[0]
        for _ in range(3):
            backward()
            assert large_allocations(lambda s=sharded: s.clip_grad_norm_(1.0)) == []  # type: ignore[misc]
            assert large_allocations(sharded.step) == [], optimizer
        assert (segments(), threads()) == before


@pytest.mark.parametrize("gradients", MODES)
def test_steps_make_nothing_after_the_second(gradients: str) -> None:
    ranks.run(makes_nothing, 2, gradients)


def bytes_of_state(rank: int, world_size: int) -> None:
    cases = [(optim.SGD, 0), (optim.AdamW, 2), (LAMB, 2), (optim.NAdam, 2)]
    for gradients in MODES:
        for optimizer, arrays in cases:
            model = DistributedDataParallel(million())
            sharded = ZeroRedundancyOptimizer(
                model.parameters(),
                optimizer,
                gradients=gradients,  # type: ignore[arg-type]
            )
            model(torch.ones(2, 301)).square().mean().backward()
            sharded.step()
            total = arrays * sum(p.nbytes for p in model.parameters())
            assert sharded.state_bytes() == pytest.approx(total / world_size, rel=0.01)


@pytest.mark.parametrize("world_size", [3, 4])
def test_a_rank_keeps_its_part_of_the_state(world_size: int) -> None:
    ranks.run(bytes_of_state, world_size)


def deleted_wrappers_leave_nothing(rank: int, world_size: int) -> None:
    def train(gradients: Any) -> None:
        model = DistributedDataParallel(nn.Linear(8, 8))
        sharded = ZeroRedundancyOptimizer(
            model.parameters(), optim.SGD, gradients=gradients, lr=0.1
        )
        for _ in range(2):
            sharded.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            sharded.step()

    def held() -> dict[str, int]:
        gc.collect()
        dist.barrier()
        files = len(list(Path("/proc/self/fd").iterdir()))
        return {"segments": len(segments()), "threads": len(threads()), "files": files}

    for gradients in MODES:
        train(gradients)
    before = held()
    for _ in range(4):
        for gradients in MODES:
            train(gradients)
    assert held() == before


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
def test_deleted_wrappers_leave_nothing(backend: str) -> None:
    ranks.run(deleted_wrappers_leave_nothing, 2, setup=ranks.Setup(backend=backend))
