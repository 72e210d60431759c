# SPDX-License-Identifier: Apache-2.0
"""How fast AdamW goes over memory, ours and torch's, beside a copy of as many bytes."""

import statistics
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from lanes import Ranks
from measure import interleaved, percentile
from rounds import Row, commands, compared
from zero_lanes import KERNEL_ARRAYS, PARAMETER_BYTES

HERE = Path(__file__).parent
WAYS = ["farandole", "torch", "memcpy"]
PROCESSES = [1, 2]  # at once
ELEMENTS = {"full": 16 * 1024**2, "quick": 64 * 1024}
ITERATIONS = 3  # of a way in a round


def measure(size: str, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """One row a way and number of processes; raises RuntimeError if parameters differ."""
    elements = ELEMENTS[size]
    script = [str(HERE / "kernel_worker.py"), str(elements)]
    cells = [(way, processes) for processes in PROCESSES for way in WAYS]
    times: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    with closing(Ranks("kernels", max(PROCESSES), partial(commands, script, []))) as ranks:
        for way in WAYS:
            ranks.ask(f"{way} {ITERATIONS} {max(PROCESSES)}")  # warms up
        verify(ranks)
        for cells_of_round in interleaved(cells, rounds):
            for way, processes in cells_of_round:
                answers = ranks.ask(f"{way} {ITERATIONS} {processes}")
                times[way, processes].append(median_ms(answers))
        verify(ranks)
    rows = [make_row(size, way, processes, times) for way, processes in cells]
    for row in rows:
        say(f"kernel, {row['processes']} at once, {row['lane']}: {row['gb_s']:.1f} GB/s")
    return rows


def verify(ranks: Ranks) -> None:
    """All ways have taken as many steps."""
    if wrong := sum(answer["wrong"] for answer in ranks.ask("verify")):
        raise RuntimeError(f"kernels: {wrong} elements are not torch's")


def median_ms(answers: list[dict[str, Any]]) -> float:
    """Over the processes and iterations of a round."""
    return statistics.median(time for answer in answers for time in answer["times_ns"]) / 1e6


def make_row(size: str, way: str, processes: int, times: dict[tuple[str, int], list[float]]) -> Row:
    """See docs/benchmarks.md."""
    own, copies = times[way, processes], times["memcpy", processes]
    count = KERNEL_ARRAYS * PARAMETER_BYTES * ELEMENTS[size]
    row: Row = {"part": "kernel", "task": "kernel", "size": size, "ranks": processes, "lane": way}
    row |= {"processes": processes, "elements": ELEMENTS[size], "bytes": count}
    row["median_ms"] = round(statistics.median(own), 4)
    row["p95_ms"] = round(percentile(own, 95), 4)
    row["gb_s"] = round(count / statistics.median(own) / 1e6, 3)
    row["rounds"] = len(own)
    row["verified"] = True
    if way != "memcpy":
        row |= compared(own, copies)
        row["of_memcpy"] = round(1 / row["ratio"], 4)
    return row
