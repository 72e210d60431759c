# SPDX-License-Identifier: Apache-2.0
"""Runs the lanes of a task in interleaved rounds, or for their memory; makes rows of results."""

import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lanes import Ranks
from measure import interleaved, percentile
from memory_sets import available_bytes, sets_of
from operations import MIB
from rounds import VERIFIED_STEPS, Plan, Row, commands, compared, memory_of, of_steps, progress_line
from tasks import parameters_of
from zero_lanes import lane_of

HERE = Path(__file__).parent


@dataclass
class Times:
    """What one lane took: one entry a step, milliseconds; the two parts add up to the whole."""

    steps_ms: list[float] = field(default_factory=list)  # first rank's begin to last one's end
    backward_ms: list[float] = field(default_factory=list)  # to the last rank's end of backward
    update_ms: list[float] = field(default_factory=list)  # from there
    checked: Row = field(default_factory=dict)  # what verify() found

    def add(self, answers: list[dict[str, Any]]) -> None:
        """One round."""
        begins = of_steps(answers, "begin_ns", min)
        middles = of_steps(answers, "middle_ns", max)
        ends = of_steps(answers, "end_ns", max)
        for begin, middle, end in zip(begins, middles, ends, strict=True):
            self.steps_ms.append((end - begin) / 1e6)
            self.backward_ms.append((middle - begin) / 1e6)
            self.update_ms.append((end - middle) / 1e6)


def started(plan: Plan, reference: str, *settings: str) -> Ranks:
    """The ranks of a task."""
    task = plan.task
    script = [str(HERE / "rank.py"), task.name, plan.size, reference]
    return Ranks(f"zero, {task.name}", task.ranks, partial(commands, script, [*settings]))


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """One row a lane, of a baseline one a set of lanes; RuntimeError if parameters are wrong."""
    parameters = parameters_of(plan.task, plan.size)
    sets = sets_of(plan.lanes, parameters, plan.task.ranks, available_bytes())
    rows: list[Row] = []
    with TemporaryDirectory(prefix="farandole-bench-") as reference:
        make_reference(plan, reference)
        for index, lanes in enumerate(sets):
            times = measure_set(replace(plan, lanes=lanes), reference, say)
            rows += [{**make_row(plan, lane, times, parameters), "set": index} for lane in times]
    return rows


def make_reference(plan: Plan, folder: str) -> None:
    """The parameters to be had before the rounds and after them."""
    task = plan.task
    script = [str(HERE / "reference.py"), task.name, plan.size, str(task.ranks), folder]
    all_steps = 2 * VERIFIED_STEPS + plan.rounds * task.steps
    with closing(Ranks("reference", 1, partial(commands, script, []))) as ranks:
        ranks.ask(f"{VERIFIED_STEPS} {all_steps}")


def measure_set(plan: Plan, reference: str, say: Callable[[str], None]) -> dict[str, Times]:
    """Lanes that are in memory together."""
    times = {lane: Times() for lane in plan.lanes}
    with closing(started(plan, reference)) as ranks:
        verify(plan, ranks, times)
        for turn, lanes in enumerate(interleaved(plan.lanes, plan.rounds)):
            for lane in lanes:
                times[lane].add(ranks.ask(f"measure {lane} {plan.task.steps}"))
            if turn in {0, plan.rounds // 2, plan.rounds - 1}:
                medians = {name: each.steps_ms for name, each in times.items()}
                what = f"{plan.task.name}, {plan.task.ranks} ranks"
                say(progress_line(what, turn, plan.rounds, medians))
        verify(plan, ranks, times)
    return times


def verify(plan: Plan, ranks: Ranks, times: dict[str, Times]) -> None:
    """Also warms up: every lane takes a few steps."""
    for lane in plan.lanes:
        answers = ranks.ask(f"verify {lane} {VERIFIED_STEPS}")
        what = f"{plan.task.name}, {plan.task.ranks} ranks, {lane}"
        if wrong := sum(answer["wrong"] for answer in answers):
            raise RuntimeError(f"{what}: {wrong} wrong elements in parameters")
        if len({answer["digest"] for answer in answers}) > 1:
            raise RuntimeError(f"{what}: ranks have different parameters")
        times[lane].checked = {
            key: max(answer[key] for answer in answers) for key in ("state_bytes", "largest_error")
        }


def make_row(plan: Plan, lane: str, times: dict[str, Times], parameters: int) -> Row:
    """See docs/benchmarks.md."""
    own, ranks, formulas = times[lane], plan.task.ranks, lane_of(lane)
    row: Row = {
        **head(plan, lane),
        "parameters": parameters,
        "median_ms": round(statistics.median(own.steps_ms), 4),
        "p95_ms": round(percentile(own.steps_ms, 95), 4),
        "backward_ms": round(statistics.median(own.backward_ms), 4),
        "update_ms": round(statistics.median(own.update_ms), 4),
        "steps": len(own.steps_ms),
        **own.checked,
        "predicted_state_bytes": round(formulas.state_bytes(parameters, ranks)),
        "moved_bytes": round(formulas.moved_bytes(parameters, ranks)),
        "verified": True,
    }
    if formulas.baseline in times and formulas.baseline != lane:
        row |= compared(own.steps_ms, times[formulas.baseline].steps_ms)
    return row


def measure_memory(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """One row a lane, in processes of its own."""
    parameters = parameters_of(plan.task, plan.size)
    rows = []
    for lane in plan.lanes:
        predicted = lane_of(lane).steady_bytes(parameters, plan.task.ranks)
        row = {**head(plan, lane), "predicted_steady_bytes": round(predicted)}
        row |= memory_of(lane, partial(started, plan, "none"))
        steady = f"{row['live_steady_bytes'] / MIB:.1f} MiB, {predicted / MIB:.1f} predicted"
        say(f"{plan.task.name}, {plan.task.ranks} ranks, {lane}: steady {steady}")
        rows.append(row)
    return rows


def head(plan: Plan, lane: str) -> Row:
    """What a row is about."""
    task = plan.task
    row = {"part": plan.part, "task": task.name, "size": plan.size}
    return {**row, "ranks": task.ranks, "lane": lane}
