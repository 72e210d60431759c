# SPDX-License-Identifier: Apache-2.0
"""Runs the lanes of a task in interleaved rounds and makes a row of results of each."""

import statistics
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lanes import Place, Ranks
from measure import interleaved, percentile
from models import Task
from operations import MIB

HERE = Path(__file__).parent
VERIFIED_STEPS = 3  # the first three: torch makes its buckets anew after the first
MEMORY_STEPS = 4
FREE_AT_ONCE = "MALLOC_MMAP_THRESHOLD_=131072"  # glibc gives back what is freed, if it is larger

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    part: str  # of the results: "times", "memory" or "sweep"
    task: Task
    size: str  # "full" or "quick"
    lanes: list[str]
    rounds: int


@dataclass
class Times:
    """What one lane took: one entry a step, milliseconds, from first rank's begin to last's end."""

    steps_ms: list[float] = field(default_factory=list)
    stats_ms: list[float] = field(default_factory=list)  # exposed, of all ranks
    latest_stats_ms: list[float] = field(default_factory=list)  # of the rank that waits for none

    def add(self, answers: list[dict[str, Any]]) -> None:
        """One round."""
        answers = [answer for answer in answers if answer["begin_ns"]]
        begins = of_steps(answers, "begin_ns", min)
        ends = of_steps(answers, "end_ns", max)
        self.steps_ms += [(end - begin) / 1e6 for begin, end in zip(begins, ends, strict=True)]
        for stats in (each for answer in answers for each in answer["stats"]):
            self.stats_ms.append(stats["exposed_ms"])
            if stats["is_latest"]:
                self.latest_stats_ms.append(stats["exposed_ms"])


def of_steps(
    answers: list[dict[str, Any]], key: str, choose: Callable[[Iterable[int]], int]
) -> list[int]:
    """One time a step: the first rank's (min) or the last one's (max)."""
    return [choose(times) for times in zip(*(answer[key] for answer in answers), strict=True)]


def commands(script: list[str], settings: list[str], place: Place) -> list[list[str]]:
    """Starts `script` with its arguments; `settings` are variables of the environment."""
    start = ["env", *settings, sys.executable, *script, str(place.socket), str(place.folder)]
    return [[*start, str(rank), str(place.ranks)] for rank in range(place.ranks)]


def started(task: Task, size: str, *settings: str) -> Ranks:
    """The ranks of a task."""
    script = [str(HERE / "training.py"), task.name, size]
    return Ranks(f"ddp, {task.name}", task.ranks, partial(commands, script, [*settings]))


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """One row a lane; raises RuntimeError if gradients are wrong."""
    times = {lane: Times() for lane in plan.lanes}
    with closing(started(plan.task, plan.size)) as ranks:
        verify(plan, ranks)
        for turn, lanes in enumerate(interleaved(plan.lanes, plan.rounds)):
            for lane in lanes:
                times[lane].add(ranks.ask(f"measure {lane} {plan.task.steps}"))
            if turn in {0, plan.rounds // 2, plan.rounds - 1}:
                medians = {name: each.steps_ms for name, each in times.items()}
                say(progress_line(plan.task.name, turn, plan.rounds, medians))
        verify(plan, ranks)
    return [make_row(plan, lane, times) for lane in plan.lanes]


def measure_memory(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """One row a lane, in processes of its own: those of users, and others that keep nothing."""
    rows = []
    for lane in plan.lanes:
        row: Row = {"part": plan.part, "task": plan.task.name, "size": plan.size, "lane": lane}
        row["ranks"] = plan.task.ranks
        row |= memory_of(lane, partial(started, plan.task, plan.size))
        peaks = f"{row['peak_bytes'] / MIB:.1f} MiB, {row['live_peak_bytes'] / MIB:.1f} MiB in use"
        say(f"{plan.task.name}, {lane}: at most {peaks}")
        rows.append(row)
    return rows


def memory_of(lane: str, start: Callable[..., Ranks]) -> Row:
    """Means of the ranks, in processes as users have them and in others that keep nothing."""
    row: Row = {}
    for prefix, settings in (("", []), ("live_", [FREE_AT_ONCE])):
        with closing(start(*settings)) as ranks:
            answers = ranks.ask(f"memory {lane} {MEMORY_STEPS}")
        for key in answers[0]:
            row[prefix + key] = round(statistics.mean(answer[key] for answer in answers))
    return row


def verify(plan: Plan, ranks: Ranks) -> None:
    """Also warms up: every lane takes a few steps."""
    for lane in plan.lanes:
        answers = ranks.ask(f"verify {lane} {VERIFIED_STEPS}")
        if wrong := sum(answer["wrong"] for answer in answers):
            raise RuntimeError(f"{plan.task.name}, {lane}: {wrong} wrong elements in gradients")


def progress_line(what: str, turn: int, rounds: int, times_ms: dict[str, list[float]]) -> str:
    """Medians so far, in short."""
    cells = [f"{lane} {statistics.median(each):.2f}" for lane, each in times_ms.items()]
    return f"{what}, round {turn + 1} of {rounds}, median ms: {', '.join(cells)}"


def make_row(plan: Plan, lane: str, times: dict[str, Times]) -> Row:
    """See docs/benchmarks.md."""
    own = times[lane]
    median = statistics.median(own.steps_ms)
    row: Row = {
        "part": plan.part,
        "task": plan.task.name,
        "size": plan.size,
        "lane": lane,
        "ranks": 1 if lane == "alone" else plan.task.ranks,
        "median_ms": round(median, 4),
        "p95_ms": round(percentile(own.steps_ms, 95), 4),
        "steps": len(own.steps_ms),
        "verified": True,
    }
    if lane not in {"alone", "local"} and "local" in times:
        row |= compared(own.steps_ms, times["local"].steps_ms)
    if own.stats_ms:
        row["stats_exposed_ms"] = round(statistics.median(own.stats_ms), 4)
    if own.latest_stats_ms:
        row["latest_stats_exposed_ms"] = round(statistics.median(own.latest_stats_ms), 4)
    if lane != "alone" and "alone" in times and plan.task.ranks > 1:
        row["efficiency"] = round(statistics.median(times["alone"].steps_ms) / median, 4)
    return row


def compared(own_ms: list[float], local_ms: list[float]) -> Row:
    """Against what the lane without communication took in the same round."""
    pairs = [*zip(own_ms, local_ms, strict=True)]
    ratios = [own / local for own, local in pairs]
    return {
        "ratio": round(statistics.median(ratios), 5),
        "ratio_quartiles": [round(percentile(ratios, each), 5) for each in (25, 75)],
        "exposed_ms": round(statistics.median(own - local for own, local in pairs), 4),
    }
