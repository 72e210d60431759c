# SPDX-License-Identifier: Apache-2.0
"""Which devices these tests run on, and where their outcomes are recorded.

    pytest tests/gpu                  # on GPUs
    pytest tests/gpu --device sim     # on the simulated device

`make gpu-check` runs them and more, and writes a report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sharing
import sim
from benchmarks.gpu.accelerator import ACCELERATORS
from rank_set import STAGED, RankSet, World

MOST_RANKS = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=[*ACCELERATORS], default="cuda")
    parser.addoption("--schedule", choices=sim.SCHEDULES, default="lazy", help="of sim's streams")
    parser.addoption("--record", type=Path, help="a file that gets a line of JSON for each event")


def pytest_configure(config: pytest.Config) -> None:
    if missing := ACCELERATORS[config.getoption("--device")].why_missing():
        raise pytest.UsageError(f"{missing}. Without a GPU: pytest tests/gpu --device sim")
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config.getoption("--record")))


class Recorder:
    """Writes a line when a check begins and one when it is over; check.py reads them."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)
        self.outcome: dict[str, Any] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome = {"name": nodeid, "status": "passed", "reason": "", "seconds": 0.0}
        self.write({"begins": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcome["seconds"] += report.duration
        if report.failed:
            self.outcome |= {"status": "failed", "reason": report.longreprtext}
        elif report.skipped and self.outcome["status"] == "passed":
            _, _, reason = report.longrepr
            self.outcome |= {"status": "left out", "reason": reason.removeprefix("Skipped: ")}
        if report.when == "teardown":
            self.write(self.outcome)

    def write(self, event: dict[str, Any]) -> None:
        self.file.write(json.dumps(event) + "\n")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kind = metafunc.config.getoption("--device")
    schedule = metafunc.config.getoption("--schedule")
    most = largest_world(ACCELERATORS[kind].count()) if kind == "cuda" else 2
    if "group" in metafunc.fixturenames:
        found = [World(kind, size, schedule=schedule) for size in sorted({1, 2, most})]
        found.append(World(kind, 2, STAGED, schedule))
        if kind == "cuda":  # ranks of the simulated NCCL have a device each
            found += [World(kind, 2, variable) for variable in sharing.VARIABLES]
        metafunc.parametrize("group", found, indirect=True, ids=str, scope="session")
    if "doomed" in metafunc.fixturenames:
        found = [World(kind, 2, schedule=schedule)]
        if kind == "cuda":
            found.append(World(kind, 2, sharing.VARIABLES[0]))
        metafunc.parametrize("doomed", found, indirect=True, ids=str)


def largest_world(devices: int) -> int:
    """A power of two, by which small numbers divide exactly in every dtype."""
    return 1 << (min(MOST_RANKS, max(2, devices)).bit_length() - 1)


def started(world: World) -> RankSet:
    """Skips the test where this machine cannot have such ranks."""
    count = world.accelerator.count()
    if world.sharing and not world.is_staged:
        sharing.skip_if_impossible(world)
    elif not world.is_staged and world.size > count:
        pytest.skip(f"this machine has {count} GPU{'s' * (count > 1)}")
    found = RankSet(world)
    try:
        found.run(sharing.sum_of_ranks)
    except AssertionError:
        if world.sharing and not world.is_staged:
            sharing.skip_if_torch_fails_too(world)
        raise
    return found


@pytest.fixture(scope="session")
def group(request: pytest.FixtureRequest) -> Iterator[RankSet]:
    """Ranks that stay for all tests of their world."""
    found = started(request.param)
    yield found
    found.close()


@pytest.fixture
def doomed(request: pytest.FixtureRequest) -> Iterator[RankSet]:
    """Ranks for a test that ends their group."""
    found = started(request.param)
    yield found
    found.kill()
