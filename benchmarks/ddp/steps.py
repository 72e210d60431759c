# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of each lane: times and memory."""

import statistics
from dataclasses import dataclass, field

from benchmarks.ddp import rounds
from benchmarks.ddp.rounds import Plan, Times
from benchmarks.harness.ranks import Answer, Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, median_and_p95


@dataclass
class BackwardTimes(Times):
    """With what stats() says of Farandole's lanes."""

    stats_ms: list[float] = field(default_factory=list)  # exposed, of all ranks
    latest_stats_ms: list[float] = field(default_factory=list)  # of the rank that waits for none

    def add(self, answers: list[Answer]) -> None:
        """One round."""
        super().add([answer for answer in answers if answer["begin_ns"]])
        for stats in (each for answer in answers for each in answer.get("stats", [])):
            self.stats_ms.append(stats["exposed_ms"])
            if stats["is_latest"]:
                self.latest_stats_ms.append(stats["exposed_ms"])


def started(plan: Plan, *settings: str) -> Ranks:
    """The ranks of a task."""
    task = plan.task
    start = commands_of_module("ddp.training", task.name, plan.size, settings=settings)
    return Ranks(f"ddp, {task.name}", task.ranks, start)


def measure(plan: Plan) -> list[Row]:
    """One row a lane; raises RuntimeError if gradients are wrong."""
    times = {lane: BackwardTimes() for lane in plan.lanes}
    with started(plan) as ranks:
        rounds.run(plan, ranks, times)
    return [make_row(plan, lane, times) for lane in plan.lanes]


def measure_memory(plan: Plan) -> list[Row]:
    """One row a lane, in processes of its own."""
    return rounds.measure_memory(plan, started, lambda _: {})


def make_row(plan: Plan, lane: str, times: dict[str, BackwardTimes]) -> Row:
    """See docs/benchmarks.md."""
    own = times[lane]
    row: Row = {**plan.head(lane), **median_and_p95(own.steps_ms)}
    if lane == "alone":
        row["ranks"] = 1
    row |= {"steps": len(own.steps_ms), "verified": True}
    if lane not in {"alone", "local"} and "local" in times:
        row |= compared(own.steps_ms, times["local"].steps_ms)
    if own.stats_ms:
        row["stats_exposed_ms"] = round(statistics.median(own.stats_ms), 4)
    if own.latest_stats_ms:
        row["latest_stats_exposed_ms"] = round(statistics.median(own.latest_stats_ms), 4)
    if lane != "alone" and "alone" in times and plan.task.ranks > 1:
        alone, together = (statistics.median(times[each].steps_ms) for each in ("alone", lane))
        row["efficiency"] = round(alone / together, 4)
    return row
