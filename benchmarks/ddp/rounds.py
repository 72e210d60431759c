# SPDX-License-Identifier: Apache-2.0
"""Interleaved rounds of training steps: those of all models and lanes, with any optimizer."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from farandole.bench.rounds import interleaved
from farandole.bench.sizes import MIB

from benchmarks.ddp.models import Task
from benchmarks.harness.ranks import Answer, Ranks
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import say

VERIFIED_STEPS = 3  # the first three: torch makes its buckets anew after the first
MEMORY_STEPS = 4
FREE_AT_ONCE = "MALLOC_MMAP_THRESHOLD_=131072"  # glibc gives back what is freed, if it is larger


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    part: str  # of the results: "times", "memory" or "sweep"
    task: Task
    size: str  # "full" or "quick"
    lanes: list[str]
    rounds: int

    @property
    def title(self) -> str:
        """In messages."""
        return f"{self.task.name}, {self.task.ranks} rank{'s' * (self.task.ranks > 1)}"

    def head(self, lane: str) -> Row:
        """What a row is about."""
        row = {"part": self.part, "task": self.task.name, "size": self.size}
        return {**row, "ranks": self.task.ranks, "lane": lane}


@dataclass
class Times:
    """What one lane took: one entry a step, milliseconds, from first rank's begin to last's end."""

    steps_ms: list[float] = field(default_factory=list)

    def add(self, answers: list[Answer]) -> None:
        """One round."""
        begins = of_steps(answers, "begin_ns", min)
        ends = of_steps(answers, "end_ns", max)
        self.steps_ms += milliseconds(begins, ends)


def of_steps(answers: list[Answer], key: str, choose: Callable[[Iterable[int]], int]) -> list[int]:
    """One time a step: the first rank's (min) or the last one's (max)."""
    return [choose(times) for times in zip(*(answer[key] for answer in answers), strict=True)]


def milliseconds(begins: list[int], ends: list[int]) -> list[float]:
    """Of each step."""
    return [(end - begin) / 1e6 for begin, end in zip(begins, ends, strict=True)]


def run(plan: Plan, ranks: Ranks, times: Mapping[str, Times]) -> dict[str, list[Answer]]:
    """Adds to `times`; gives what each lane answered when it was verified at the end."""
    verify(plan, ranks)
    for turn, lanes in enumerate(interleaved(plan.lanes, plan.rounds)):
        for lane in lanes:
            times[lane].add(ranks.ask(f"measure {lane} {plan.task.steps}"))
        if turn in {0, plan.rounds // 2, plan.rounds - 1}:
            medians = (f"{lane} {statistics.median(times[lane].steps_ms):.2f}" for lane in times)
            say(f"{plan.title}, round {turn + 1} of {plan.rounds}, median ms: {', '.join(medians)}")
    return verify(plan, ranks)


def verify(plan: Plan, ranks: Ranks) -> dict[str, list[Answer]]:
    """By lane; RuntimeError if one is wrong. Also warms up: every lane takes a few steps."""
    found = {}
    for lane in plan.lanes:
        answers = found[lane] = ranks.ask(f"verify {lane} {VERIFIED_STEPS}")
        if wrong := sum(answer["wrong"] for answer in answers):
            raise RuntimeError(f"{plan.title}, {lane}: {wrong} wrong elements")
        if len({answer.get("digest") for answer in answers}) > 1:
            raise RuntimeError(f"{plan.title}, {lane}: ranks have different parameters")
    return found


def measure_memory(
    plan: Plan, start: Callable[..., Ranks], fields: Callable[[str], Row]
) -> list[Row]:
    """One row a lane, with its `fields`; means of the ranks.

    Of processes as users have them, and of others ("live_") that keep nothing that is freed.
    `start` gets the plan and variables of the environment.
    """
    rows = []
    for lane in plan.lanes:
        row = {**plan.head(lane), **fields(lane)}
        for prefix, settings in (("", []), ("live_", [FREE_AT_ONCE])):
            with start(plan, *settings) as ranks:
                answers = ranks.ask(f"memory {lane} {MEMORY_STEPS}")
            for key in answers[0]:
                row[prefix + key] = round(statistics.mean(answer[key] for answer in answers))
        peaks = f"{row['peak_bytes'] / MIB:.1f} MiB, {row['live_peak_bytes'] / MIB:.1f} MiB in use"
        say(f"{plan.title}, {lane}: at most {peaks}")
        rows.append(row)
    return rows
