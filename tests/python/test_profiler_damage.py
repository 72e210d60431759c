# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in the files, rules judge what is left and never fail."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from farandole.profiler import Profile, ProfilerReport

from profile_fixtures import TimelineWriter, core, gpu, write_metrics

ODD: list[Any] = [
    *([], [1], {}, {"a": 1}, None, "", "x", True),
    *(-1, 0, 1e308, -1e308, 10**30, 2**63, 1e-300, "\ud800"),
]
PATIENCE_OF = (
    *("BatchSize", "CPUBottleneck", "IOBottleneck", "GPUMemoryIncrease", "LoadBalancing"),
    *("LowGPUUtilization", "Straggler", "ExposedCommunication", "UnevenShards"),
    *("HostCpuOversubscribed", "HostMemoryLeak"),
)
IMPATIENT = ProfilerReport(
    **{f"{rule}_patience": 1 for rule in PATIENCE_OF},
    BatchSize_window=5,
    GPUMemoryIncrease_window=2,
    LowGPUUtilization_window=5,
)


def write(folder: Path) -> list[Path]:
    """Something for each rule to judge."""
    names = [core(0), core(0, "I/OWaitPercentage"), gpu(0), gpu(1), gpu(0, "GPUThrottleReasons")]
    names += [gpu(0, "GPUMemoryUtilization"), ("host", "cores", "RunnableThreadsPerCore")]
    names += [("memory", "MemoryUsedPercent", "")]
    paths = [write_metrics(folder, {name: [50.0] * 12 for name in names})]
    for rank in range(2):
        writer = TimelineWriter(folder, rank)
        for step in range(110):
            writer.span("bucket", "bucket 0", 10, bytes=100)
            writer.step(step, workers=1, forward=3000 + 2000 * rank, latest=1)
        paths.append(writer.save())
    return paths


def judge(folder: Path) -> dict[str, Any]:
    report = IMPATIENT.evaluate(Profile(folder))
    return dict(json.loads(json.dumps(report.to_json(), allow_nan=False)))


def test_without_damage_all_rules_have_data(tmp_path: Path) -> None:
    write(tmp_path)
    missing = [each["rule"] for each in judge(tmp_path)["figures"]["rules"] if not each["has_data"]]
    assert missing == []


@pytest.mark.parametrize("seed", range(20))
def test_bytes_may_be_anything(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for path in write(tmp_path):
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 200)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
    judge(tmp_path)


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_values_may_be_anything(tmp_path: Path, odd: Any) -> None:
    rng = random.Random(0)
    for path in write(tmp_path):
        lines = [line.strip(",") for line in path.read_text().splitlines()]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        for _ in range(60):
            event = rng.choice(events)
            place = rng.choice([event, event.get("args") or event])
            if isinstance(place, dict) and place:
                place[rng.choice(sorted(place))] = copy.deepcopy(odd)
        path.write_text("\n".join(json.dumps(event) for event in events))
    judge(tmp_path)
