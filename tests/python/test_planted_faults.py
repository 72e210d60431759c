# SPDX-License-Identifier: Apache-2.0
"""Trainings with a fault of the program, recorded as they run: the report names it first."""

from __future__ import annotations

import gc
import math
import os
import time
from pathlib import Path
from typing import Any

from farandole.profiler import RuleReport

import ranks
from recorded_training import (
    Samples,
    Work,
    among_other_programs,
    fired,
    loader,
    names,
    speedup,
    train,
)

STEPS = 60
PAUSE_S = 0.02


def _train(rank: int, size: int, folder: str, fault: str) -> None:
    slow = rank == 1
    reads = {"late data": slow * PAUSE_S, "late data everywhere": PAUSE_S}.get(fault, 0.0)
    computes: dict[str, Work] = {
        "slow rank": lambda _: time.sleep(slow * PAUSE_S),
        "uneven sequences": lambda step: time.sleep(PAUSE_S * ((step * 7 + 3 * rank) % 5 > 2)),
    }
    garbage: list[Any] = []

    def collect(step: int) -> None:
        if fault == "garbage" and step % 20 == 19:
            garbage.append([[number] for number in range(400_000)])
            gc.collect()

    compute = computes.get(fault, lambda _: time.sleep(0.01))
    train(folder, loader(Samples(STEPS, lambda _: time.sleep(reads))), compute, collect)


def report_of(folder: Path, fault: str, **parameters: Any) -> list[RuleReport]:
    ranks.run(_train, 2, str(folder), fault)
    return fired(folder, **parameters)


@among_other_programs
def test_late_data_of_one_rank(tmp_path: Path) -> None:
    first = report_of(tmp_path, "late data")[0]
    assert first.rule == "Straggler"
    assert "rank 1" in first.what
    assert "the cause is data" in first.what


@among_other_programs
def test_late_data_of_all_ranks(tmp_path: Path) -> None:
    assert report_of(tmp_path, "late data everywhere")[0].rule == "Dataloader"


@among_other_programs
def test_a_slow_rank(tmp_path: Path) -> None:
    first = report_of(tmp_path, "slow rank")[0]
    assert first.rule == "Straggler"
    assert "rank 1" in first.what
    assert "the cause is compute" in first.what


@among_other_programs
def test_sequences_of_uneven_lengths(tmp_path: Path) -> None:
    assert report_of(tmp_path, "uneven sequences")[0].rule == "UnevenShards"


@among_other_programs
def test_pauses_of_the_garbage_collector(tmp_path: Path) -> None:
    first = report_of(tmp_path, "garbage")[0]
    assert first.rule == "GarbageCollection"
    assert "rank 0" in first.what
    assert "rank 1" in first.what


@among_other_programs
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    found = set(names(report_of(tmp_path, "none", Dataloader_min_threshold=0)))  # it needs none
    # Steps of 1 ms wait for each other a little; how busy this host is, is not the training's. On a
    # busy host, ranks lose their cores in some of the steps.
    of_busy_hosts = {"UnevenShards"} if ranks.load() > 3 else set()
    assert found <= {"ExposedCommunication", "HostCpuOversubscribed", *of_busy_hosts}


def _loads(rank: int, size: int, folder: str, workers: int) -> None:
    """A sample waits for 50 ms, as for a store over a network."""
    samples = Samples(STEPS // 2, lambda _: time.sleep(0.05))
    train(folder, loader(samples, workers), lambda _: time.sleep(0.05))


@among_other_programs
def test_too_few_workers(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    ranks.run(_loads, 2, str(before), 0)
    first = fired(before)[0]
    assert first.rule == "Dataloader"
    assert "rank 0 (" in first.what
    assert "rank 1 (" in first.what
    assert "num_workers=0" in first.what
    assert "there are few loading processes: 0 for" in first.what
    assert "set a larger num_workers" in first.advice

    enough = max(2, math.ceil(0.7 * (os.cpu_count() or 1) / 2))
    ranks.run(_loads, 2, str(after), enough)
    assert "Dataloader" not in names(fired(after))
    assert speedup(before, after) > 1.2
