# SPDX-License-Identifier: Apache-2.0
"""Measures one table: a layout of ranks on hosts, a rate, and all sizes and lanes."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.ranks import Answer, Ranks
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import interleaved, median_and_p95, say
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.zero.tasks import TASKS, parameters_of

LANES = {
    "raw": "plain TCP",
    "alone": "no DDP",
    "farandole": "Farandole",
    "farandole_bf16": "Farandole, bfloat16",
    "gloo": "torch over gloo",
    "gloo_bf16": "torch over gloo, bfloat16",
}
OF_PART = {
    "all_reduce": ["raw", "farandole", "farandole_bf16", "gloo"],
    "steps": ["alone", "farandole", "farandole_bf16", "gloo", "gloo_bf16"],
}
SECONDS_A_LANE = 2.0  # about, of each round


@dataclass(frozen=True)
class Plan:
    """What to measure together."""

    part: str
    layout: str  # the host of each rank, as "0,0,1,1"
    rate: str  # of each host's network, as tc writes it
    sizes: Sequence[object]  # bytes, or those of a model
    lanes: Sequence[str] | None  # all of the part
    rounds: int

    @property
    def hosts(self) -> list[int]:
        """By rank."""
        return [int(host) for host in self.layout.split(",")]


def gbit(rate: str) -> float:
    """Of a rate as tc writes it."""
    return float(rate[:-4]) / {"mbit": 1000, "gbit": 1}[rate[-4:]]


def bytes_of(plan: Plan, size: object) -> int:
    """Of the tensors that are reduced, in float32."""
    if plan.part == "all_reduce":
        return int(str(size))
    return 4 * parameters_of(TASKS["transformer"], str(size))


def wire_s(plan: Plan, size: object) -> float:
    """The least time for what a host must send."""
    count = len(set(plan.hosts))
    return 2 * (count - 1) / count * bytes_of(plan, size) * 8 / gbit(plan.rate) / 1e9


def measure(plan: Plan) -> list[Row]:
    """One row a size and lane; raises RuntimeError where a result is wrong."""
    lanes = [lane for lane in OF_PART[plan.part] if not plan.lanes or lane in plan.lanes]
    rows: list[Row] = []
    hosts = EmulatedHosts(len(set(plan.hosts)), plan.rate)
    with hosts:
        commands = hosts.commands(plan.hosts, "hosts.worker", plan.layout)
        with Ranks(plan.layout, len(plan.hosts), commands) as ranks:
            for size in plan.sizes:
                times = count_for(plan, size)
                taken: dict[str, list[list[Answer]]] = {lane: [] for lane in lanes}
                for turns in interleaved(lanes, plan.rounds):
                    for lane in turns:
                        question = f"{plan.part} {lane} {size} {times}"
                        taken[lane].append(ranks.ask(question))
                rows += rows_of(plan, size, taken)
    return rows


def count_for(plan: Plan, size: object) -> int:
    """So often a lane runs in one round."""
    each = wire_s(plan, size) + (0.0005 if plan.part == "all_reduce" else 0.3)
    return max(3, min(100, round(SECONDS_A_LANE / each)))


def rows_of(plan: Plan, size: object, taken: dict[str, list[list[Answer]]]) -> list[Row]:
    """A collective has taken as long as its slowest rank."""
    rows: list[Row] = []
    for lane, rounds in taken.items():
        if wrong := sum(answer["wrong"] for answers in rounds for answer in answers):
            raise RuntimeError(f"{plan.part}, {lane}, {size}: {wrong} elements are wrong")
        seconds = [
            max(each)
            for answers in rounds
            for each in zip(*(answer["seconds"] for answer in answers), strict=True)
        ]
        cpu = sum(answer["cpu_s"] for answers in rounds for answer in answers)
        moved = 2 * len(set(plan.hosts)) * wire_s(plan, size) * gbit(plan.rate) / 8
        row: Row = {"part": plan.part, "hosts": plan.layout, "rate": plan.rate, "size": size}
        row |= {"bytes": bytes_of(plan, size), "lane": lane, "times": len(seconds)}
        row |= median_and_p95([1e3 * each for each in seconds])
        row["best_ms"] = round(1e3 * min(seconds), 4)
        row["wire_ms"] = round(1e3 * wire_s(plan, size), 4)
        row["cpu_s_a_gb"] = round(cpu / len(seconds) / moved, 4)
        rows.append({**row, "verified": True})
    medians = {row["lane"]: row["median_ms"] for row in rows}
    for row in rows:
        if "raw" in medians:
            row["of_raw"] = round(medians["raw"] / row["median_ms"], 4)
        say(f"{plan.layout}, {plan.rate}, {size}, {row['lane']}: {row['median_ms']:.2f} ms")
    return rows
