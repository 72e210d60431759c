# SPDX-License-Identifier: Apache-2.0
"""Trainings with a fault, recorded as they run: the report names it first, and its rank."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import torch
from farandole import profiler
from farandole.profiler import Profile, ProfilerReport, RuleReport
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ranks

STEPS = 60
PAUSE_S = 0.02


class Samples(Dataset[Tensor]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self._pause_s)
        return torch.randn(8, 32)


class Net(nn.Module):
    """It takes as long as its longest sequence."""

    def __init__(self, pauses: Callable[[int], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self._pauses, self._step = pauses, 0

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self._pauses(self._step))
        self._step += 1
        output: Tensor = self.layer(x)
        return output


def _train(rank: int, size: int, folder: str, fault: str) -> None:
    slow = rank == 1
    reads = {"late data": slow * PAUSE_S, "late data everywhere": PAUSE_S}.get(fault, 0.0)
    computes: dict[str, Callable[[int], float]] = {
        "slow rank": lambda _: slow * PAUSE_S,
        "uneven sequences": lambda step: PAUSE_S * ((step * 7 + 3 * rank) % 5 > 2),
    }
    net = Net(computes.get(fault, lambda _: 0.01))
    model = farandole.DistributedDataParallel(net)
    optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    garbage: list[Any] = []
    gc.disable()  # what comes by itself is not planted
    profiler.start(folder, system_interval_ms=100)
    for step, x in enumerate(DataLoader(Samples(reads), 1)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if fault == "garbage" and step % 20 == 19:
            garbage.append([[number] for number in range(400_000)])
            gc.collect()
    profiler.stop()


def report_of(folder: Path, fault: str) -> list[RuleReport]:
    """Of the rules that fired, in the order in which a report shows them."""
    ranks.run(_train, 2, str(folder), fault)
    reports = ProfilerReport().reports(Profile(folder))
    return [report for report in reports if report.fired]


def test_late_data_of_one_rank(tmp_path: Path) -> None:
    first = report_of(tmp_path, "late data")[0]
    assert first.rule == "Straggler"
    assert "rank 1" in first.what
    assert "the cause is data" in first.what


def test_late_data_of_all_ranks(tmp_path: Path) -> None:
    fired = [report.rule for report in report_of(tmp_path, "late data everywhere")]
    assert fired[0] == "Dataloader"


def test_a_slow_rank(tmp_path: Path) -> None:
    first = report_of(tmp_path, "slow rank")[0]
    assert first.rule == "Straggler"
    assert "rank 1" in first.what
    assert "the cause is compute" in first.what


def test_sequences_of_uneven_lengths(tmp_path: Path) -> None:
    assert report_of(tmp_path, "uneven sequences")[0].rule == "UnevenShards"


def test_pauses_of_the_garbage_collector(tmp_path: Path) -> None:
    first = report_of(tmp_path, "garbage")[0]
    assert first.rule == "GarbageCollection"
    assert "rank 0" in first.what
    assert "rank 1" in first.what


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    fired = {report.rule for report in report_of(tmp_path, "none")}
    # Steps of 1 ms wait for each other a little; how busy this host is, is not the training's.
    assert fired <= {"ExposedCommunication", "HostCpuOversubscribed"}
