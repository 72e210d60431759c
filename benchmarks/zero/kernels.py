# SPDX-License-Identifier: Apache-2.0
"""How fast loops go over memory, ours and torch's, beside a copy of as many bytes."""

import statistics
from dataclasses import dataclass, field

from farandole.bench.rounds import interleaved

from benchmarks.harness.ranks import Answer, Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, median_and_p95, say
from benchmarks.zero.lanes import KERNEL_ARRAYS, PARAMETER_BYTES

PROCESSES = [1, 2]  # at once
ELEMENTS = {"full": 16 * 1024**2, "quick": 64 * 1024}
ITERATIONS = 3  # of a way in a round


@dataclass(frozen=True)
class Kernel:
    """What is done in some ways. Its module answers as kernel_worker.py does."""

    task: str  # in the results
    module: list[str]  # that each process runs, and its first arguments
    ways: list[str]  # "memcpy" among them
    bytes: int  # read and written
    fields: Row = field(default_factory=dict)  # of all rows
    peer: str | None = None  # the way that ours is compared with, beside the copy


def adamw(size: str) -> Kernel:
    """One step."""
    elements = ELEMENTS[size]
    module = ["zero.kernel_worker", str(elements)]
    count = KERNEL_ARRAYS * PARAMETER_BYTES * elements
    return Kernel("kernel", module, ["farandole", "torch", "memcpy"], count, {"elements": elements})


def measure(kernel: Kernel, size: str, rounds: int) -> list[Row]:
    """One row a way and number of processes; raises RuntimeError if results differ."""
    cells = [(way, processes) for processes in PROCESSES for way in kernel.ways]
    times: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    with Ranks("kernels", max(PROCESSES), commands_of_module(*kernel.module)) as ranks:
        for way in kernel.ways:
            ranks.ask(f"{way} {ITERATIONS} {max(PROCESSES)}")  # warms up
        verify(kernel, ranks)
        for cells_of_round in interleaved(cells, rounds):
            for way, processes in cells_of_round:
                answers = ranks.ask(f"{way} {ITERATIONS} {processes}")
                times[way, processes].append(median_ms(answers))
        verify(kernel, ranks)
    rows = [make_row(kernel, size, way, processes, times) for way, processes in cells]
    for row in rows:
        what = f"{kernel.task}, {row['processes']} at once"
        say(f"{what}, {row['lane']}: {row['gb_s']:.1f} GB/s")
    return rows


def verify(kernel: Kernel, ranks: Ranks) -> None:
    """All ways have run as often."""
    if wrong := sum(answer["wrong"] for answer in ranks.ask("verify")):
        raise RuntimeError(f"{kernel.task}: {wrong} elements are wrong")


def median_ms(answers: list[Answer]) -> float:
    """Over the processes and iterations of a round."""
    times: list[int] = [time for answer in answers for time in answer["times_ns"]]
    return statistics.median(times) / 1e6


def make_row(
    kernel: Kernel, size: str, way: str, processes: int, times: dict[tuple[str, int], list[float]]
) -> Row:
    """See docs/benchmarks.md."""
    own, copies = times[way, processes], times["memcpy", processes]
    row: Row = {"part": "kernel", "task": kernel.task, "size": size, "ranks": processes}
    row |= {"lane": way, "processes": processes, **kernel.fields, "bytes": kernel.bytes}
    row |= median_and_p95(own)
    row["gb_s"] = round(kernel.bytes / statistics.median(own) / 1e6, 3)
    row["rounds"] = len(own)
    row["verified"] = True
    if way != "memcpy":
        row |= compared(own, copies)
        row["of_memcpy"] = round(1 / row["ratio"], 4)
    if kernel.peer is not None and way not in {kernel.peer, "memcpy"}:
        of_peer = compared(own, times[kernel.peer, processes])
        row["of_peer"] = round(1 / of_peer["ratio"], 4)
    return row
