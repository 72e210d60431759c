# SPDX-License-Identifier: Apache-2.0
"""Measures one table: a layout of ranks on hosts, a rate, and all sizes and lanes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from farandole.bench.rounds import interleaved

from benchmarks.harness.ranks import Answer, Ranks, UnavailableError
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import median_and_p95, say
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.hosts.lanes import OF_MPIRUN, hosts_of, lanes_of
from benchmarks.hosts.mpirun import commands_of_mpirun
from benchmarks.zero.tasks import TASKS, parameters_of

SMALL, SMALL_S, LARGE_S = 4 << 20, 0.4, 1.0  # about what a lane takes in a round, by bytes
FEWEST_TIMES, MOST_TIMES, MOST_LARGE_TIMES = 3, 100, 10


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
        return hosts_of(self.layout)

    @property
    def head(self) -> Row:
        """Fields of all rows."""
        return {"part": self.part, "hosts": self.layout, "rate": self.rate}

    def wanted(self) -> list[str]:
        """The lanes."""
        lanes = lanes_of(self.part, self.layout)
        return [lane for lane in lanes if not self.lanes or lane in self.lanes]


@dataclass
class Running:
    """The ranks of all lanes."""

    ranks: Ranks
    of_mpirun: Ranks | None = None
    missing: dict[str, str] = field(default_factory=dict)  # lanes that cannot run, and why

    def ask(self, part: str, lane: str, size: object, times: int) -> list[Answer]:
        """One answer a rank."""
        asked = self.of_mpirun if lane in OF_MPIRUN and self.of_mpirun else self.ranks
        return asked.ask(f"{part} {lane} {size} {times}")


def gbit(rate: str) -> float:
    """Of a rate as tc writes it."""
    return float(rate[:-4]) / {"mbit": 1000, "gbit": 1}[rate[-4:]]


def bytes_of(plan: Plan, size: object) -> int:
    """Of the tensors that are reduced, in float32."""
    if plan.part == "all_reduce":
        return int(str(size))
    return 4 * parameters_of(TASKS["transformer"], str(size))


def wire_s(plan: Plan, size: object) -> float:
    """The least time for what a host must send, without the headers of TCP/IP."""
    count = len(set(plan.hosts))
    return 2 * (count - 1) / count * bytes_of(plan, size) * 8 / gbit(plan.rate) / 1e9


def measure(plans: Sequence[Plan]) -> Iterator[list[Row]]:
    """The tables of one layout and rate; raises RuntimeError where a result is wrong."""
    with ExitStack() as stack:
        lanes = {lane for plan in plans for lane in plan.wanted()}
        running = start_all(plans[0], stack, with_mpi=not lanes.isdisjoint(OF_MPIRUN))
        for plan in plans:
            yield measure_plan(plan, running)


def measure_plan(plan: Plan, running: Running) -> list[Row]:
    """One row a size and lane."""
    wanted = plan.wanted()
    missing = {lane: why for lane, why in running.missing.items() if lane in wanted}
    lanes = [lane for lane in wanted if lane not in missing]
    rows = [row for size in plan.sizes for row in measure_size(plan, running, lanes, size)]
    place = {**plan.head, "size": "", "bytes": 0}
    return rows + [{**place, "lane": lane, "cannot": why} for lane, why in missing.items()]


def start_all(plan: Plan, stack: ExitStack, *, with_mpi: bool) -> Running:
    """On hosts of their own, all of which end with the stack."""
    hosts = stack.enter_context(EmulatedHosts(len(set(plan.hosts)), plan.rate))
    count = len(plan.hosts)
    commands = hosts.commands(plan.hosts, "hosts.worker", plan.layout)
    running = Running(stack.enter_context(Ranks(plan.layout, count, commands)))
    if with_mpi:
        try:
            commands = commands_of_mpirun(hosts, plan.hosts, "hosts.mpi_worker")
            ranks = Ranks(f"{plan.layout}, mpirun", count, commands)
            running.of_mpirun = stack.enter_context(ranks)
        except UnavailableError as reason:
            running.missing = dict.fromkeys(OF_MPIRUN, str(reason))
    return running


def measure_size(plan: Plan, running: Running, lanes: list[str], size: object) -> list[Row]:
    """One row a lane."""
    times = times_of(plan, size)
    taken: dict[str, list[list[Answer]]] = {lane: [] for lane in lanes}
    for turns in interleaved(lanes, plan.rounds):
        for lane in turns:
            what = bytes_of(plan, size) if lane == "raw" else size
            taken[lane].append(running.ask(plan.part, lane, what, times))
    rows = [row_of(plan, size, lane, rounds) for lane, rounds in taken.items()]
    compare(rows)
    for row in rows:
        say(f"{plan.layout}, {plan.rate}, {size}, {row['lane']}: {row['median_ms']:.2f} ms")
    return rows


def times_of(plan: Plan, size: object) -> int:
    """So often a lane runs in one round."""
    each = wire_s(plan, size) + (0.0005 if plan.part == "all_reduce" else 0.3)
    is_small = bytes_of(plan, size) < SMALL
    seconds, most = (SMALL_S, MOST_TIMES) if is_small else (LARGE_S, MOST_LARGE_TIMES)
    return max(FEWEST_TIMES, min(most, round(seconds / each)))


def row_of(plan: Plan, size: object, lane: str, rounds: list[list[Answer]]) -> Row:
    """A collective has taken as long as its slowest rank."""
    if wrong := sum(answer["wrong"] for answers in rounds for answer in answers):
        raise RuntimeError(f"{plan.part}, {lane}, {size}: {wrong} elements are wrong")
    seconds = [
        max(each)
        for answers in rounds
        for each in zip(*(answer["seconds"] for answer in answers), strict=True)
    ]
    cpu = sum(answer["cpu_s"] for answers in rounds for answer in answers)
    moved = 2 * len(set(plan.hosts)) * wire_s(plan, size) * gbit(plan.rate) / 8
    row: Row = {**plan.head, "size": size, "bytes": bytes_of(plan, size), "lane": lane}
    row["times"] = len(seconds)
    row |= median_and_p95([1e3 * each for each in seconds])
    row["best_ms"] = round(1e3 * min(seconds), 4)
    row["wire_ms"] = round(1e3 * wire_s(plan, size), 4)
    row["cpu_s_a_gb"] = round(cpu / len(seconds) / moved, 4)
    return {**row, "verified": True}


def compare(rows: list[Row]) -> None:
    """Adds fields about the other lanes."""
    medians = {row["lane"]: row["median_ms"] for row in rows}
    for row in rows:
        if row["part"] == "all_reduce" and "raw" in medians:
            row["of_raw"] = round(medians["raw"] / row["median_ms"], 4)
        bound = bound_ms(row["lane"], medians) if row["part"] == "steps" else None
        if bound is not None:
            row["bound_ms"] = bound
            row["of_bound"] = round(row["median_ms"] / bound, 4)


def bound_ms(lane: str, medians: dict[str, float]) -> float | None:
    """The larger of computation alone and plain TCP with the bytes of the gradients alone."""
    alone = "alone_zero" if "zero" in lane else "alone"
    if lane in ("raw", alone) or not {"raw", alone} <= medians.keys():
        return None
    wire = medians["raw"] / (2 if lane.endswith("bf16") else 1)
    return max(medians[alone], wire)
