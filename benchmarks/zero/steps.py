# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of each lane: times and memory."""

import statistics
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import TemporaryDirectory

from farandole.bench.memory import available_bytes

from benchmarks.ddp import rounds
from benchmarks.ddp.rounds import VERIFIED_STEPS, Plan, Times, milliseconds, of_steps
from benchmarks.harness.ranks import Answer, Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, median_and_p95
from benchmarks.zero.lanes import lane_of
from benchmarks.zero.memory_sets import sets_of
from benchmarks.zero.tasks import parameters_of


@dataclass
class StepTimes(Times):
    """With the two parts of each step, which add up to the whole."""

    backward_ms: list[float] = field(default_factory=list)  # to the last rank's end of backward
    update_ms: list[float] = field(default_factory=list)  # from there
    verified: list[Answer] = field(default_factory=list)  # by each rank, after the rounds

    def add(self, answers: list[Answer]) -> None:
        """One round."""
        super().add(answers)
        middles = of_steps(answers, "middle_ns", max)
        self.backward_ms += milliseconds(of_steps(answers, "begin_ns", min), middles)
        self.update_ms += milliseconds(middles, of_steps(answers, "end_ns", max))


def started(reference: str, plan: Plan, *settings: str) -> Ranks:
    """The ranks of a task."""
    name, size, ranks = plan.task.name, plan.size, plan.task.ranks
    start = commands_of_module("zero.rank", name, size, reference, settings=settings)
    return Ranks(f"zero, {name}", ranks, start)


def measure(plan: Plan) -> list[Row]:
    """One row a lane, of a baseline one a set of lanes; RuntimeError if parameters are wrong."""
    parameters = parameters_of(plan.task, plan.size)
    sets = sets_of(plan.lanes, parameters, plan.task.ranks, available_bytes())
    rows: list[Row] = []
    with TemporaryDirectory(prefix="farandole-bench-") as reference:
        make_reference(plan, reference)
        for index, lanes in enumerate(sets):
            measured = measure_set(replace(plan, lanes=lanes), reference, parameters)
            rows += [{**row, "set": index} for row in measured]
    return rows


def make_reference(plan: Plan, folder: str) -> None:
    """The parameters to be had before the rounds and after them."""
    name, size, ranks = plan.task.name, plan.size, str(plan.task.ranks)
    all_steps = 2 * VERIFIED_STEPS + plan.rounds * plan.task.steps
    start = commands_of_module("zero.reference", name, size, ranks, folder)
    with Ranks("reference", 1, start) as process:
        process.ask(f"{VERIFIED_STEPS} {all_steps}")


def measure_set(plan: Plan, reference: str, parameters: int) -> list[Row]:
    """Lanes that are in memory together."""
    times = {lane: StepTimes() for lane in plan.lanes}
    with started(reference, plan) as ranks:
        for lane, answers in rounds.run(plan, ranks, times).items():
            times[lane].verified = answers
    return [make_row(plan, lane, times, parameters) for lane in plan.lanes]


def make_row(plan: Plan, lane: str, times: dict[str, StepTimes], parameters: int) -> Row:
    """See docs/benchmarks.md."""
    own, ranks, formulas = times[lane], plan.task.ranks, lane_of(lane)
    row: Row = {
        **plan.head(lane),
        "parameters": parameters,
        **median_and_p95(own.steps_ms),
        "backward_ms": round(statistics.median(own.backward_ms), 4),
        "update_ms": round(statistics.median(own.update_ms), 4),
        "steps": len(own.steps_ms),
        "state_bytes": max(answer["state_bytes"] for answer in own.verified),
        "largest_error": max(answer["largest_error"] for answer in own.verified),
        "predicted_state_bytes": round(formulas.state_bytes(parameters, ranks)),
        "moved_bytes": round(formulas.moved_bytes(parameters, ranks)),
        "verified": True,
    }
    if formulas.baseline in times and formulas.baseline != lane:
        row |= compared(own.steps_ms, times[formulas.baseline].steps_ms)
    return row


def measure_memory(plan: Plan) -> list[Row]:
    """One row a lane, in processes of its own."""
    parameters, ranks = parameters_of(plan.task, plan.size), plan.task.ranks

    def predicted(lane: str) -> Row:
        return {"predicted_steady_bytes": round(lane_of(lane).steady_bytes(parameters, ranks))}

    return rounds.measure_memory(plan, partial(started, "none"), predicted)
