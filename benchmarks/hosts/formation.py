# SPDX-License-Identifier: Apache-2.0
"""Measures how long ranks take to form a group: each trial has fresh processes."""

import statistics

from farandole.bench.rounds import interleaved

from benchmarks.harness.ranks import Answer, Ranks
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import median_and_p95, say
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.hosts.measure import Plan


def measure(plan: Plan) -> list[Row]:
    """One row a lane; plan.rounds is the number of trials, in which lanes take turns."""
    hosts = [*range(len(set(plan.hosts)))]
    taken: dict[str, list[list[Answer]]] = {lane: [] for lane in plan.wanted()}
    with EmulatedHosts(len(hosts), plan.rate) as emulated:
        commands = emulated.commands(hosts, "hosts.former", plan.layout)
        with Ranks(f"formation, {plan.layout}", len(hosts), commands) as formers:
            for trial, lanes in enumerate(interleaved([*taken], plan.rounds)):
                for turn, lane in enumerate(lanes):
                    formers.ask(f"fork {lane} {trial * len(lanes) + turn}")
                    taken[lane].append(formers.ask("form"))
    return [row_of(plan, lane, trials) for lane, trials in taken.items()]


def row_of(plan: Plan, lane: str, trials: list[list[Answer]]) -> Row:
    """Milliseconds from when the first rank begins to when the last has its group."""
    formed, ready = ([lasts(answers, name) for answers in trials] for name in ("formed", "ready"))
    row: Row = {**plan.head, "size": "", "bytes": 0, "lane": lane, "ranks": len(plan.hosts)}
    row |= {"times": len(trials), **median_and_p95(formed), "best_ms": round(min(formed), 4)}
    row["ready_ms"] = round(statistics.median(ready), 4)
    cpu = [sum(each for answer in answers for each in answer["cpu_s"]) for answers in trials]
    row["cpu_ms"] = round(1e3 * statistics.median(cpu) / len(plan.hosts), 4)  # of a rank
    say(f"formation, {len(plan.hosts)} ranks, {lane}: {row['median_ms']:.1f} ms")
    return row


def lasts(answers: list[Answer], name: str) -> float:
    """Until the last rank of all hosts is there."""
    begin = min(each for answer in answers for each in answer["begin"])
    end = max(each for answer in answers for each in answer[name])
    return float(1e3 * (end - begin))
