# SPDX-License-Identifier: Apache-2.0
"""Verifies and times the lanes; every rank runs this, with the same plan."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import farandole
from farandole.bench import memory
from farandole.bench.collectives import values
from farandole.bench.collectives.lanes import OURS, Call, Lane
from farandole.bench.collectives.operations import Operation, bandwidths
from farandole.bench.collectives.plan import FEWEST_ITERATIONS, MOST_ITERATIONS, Case, Plan
from farandole.bench.collectives.values import DTYPES
from farandole.bench.device import synchronize
from farandole.bench.everyone import from_all
from farandole.bench.rounds import interleaved, percentile
from farandole.bench.rows import Row
from farandole.bench.sizes import GIB, MIB

_CHECKED_BYTES = 64 * MIB
"""Buffers of a rank, from which on it is asked whether they fit into memory."""
_WITH_STAGING = 2
"""Peers copy what they send."""


@dataclass
class Cell:
    """What one lane has come to in one case."""

    lane: Lane
    call: Call | None = None
    cannot: str = ""
    wrong: int = 0
    iterations: int = 0
    periods_us: list[float] = field(default_factory=list)
    """Of this rank: from the end of one call to the end of the next."""


class Bench:
    """One rank of a run."""

    def __init__(self, plan: Plan, lanes: list[Lane], device: torch.device) -> None:
        self._plan, self._lanes, self._device = plan, lanes, device
        self._rank, self._ranks = farandole.rank(), farandole.world_size()

    def measure(self, case: Case) -> list[Row]:
        """One row a lane; the same on every rank. Collective."""
        operation, dtype = case.operation, DTYPES[case.dtype]
        inputs, outputs = (
            count_of(case.count, self._ranks)
            for count_of in (operation.input_elements, operation.output_elements)
        )
        reason = self._obstacle(operation, (inputs + outputs) * dtype.itemsize)
        if reason:
            return [self._row(case, Cell(lane, cannot=reason), []) for lane in self._lanes]
        source = torch.zeros(inputs, dtype=dtype, device=self._device)
        target = source if operation.in_place else torch.zeros(
            outputs, dtype=dtype, device=self._device
        )  # fmt: skip
        cells = [Cell(lane) for lane in self._lanes]
        for cell in cells:
            self._prepare(case, cell, source, target)
        able = [cell for cell in cells if not cell.cannot]
        rounds = self._plan.rounds
        for turn in interleaved(able, rounds):
            for cell in turn:
                assert cell.call is not None
                source.zero_(), target.zero_()  # sums of zeros never overflow
                cell.periods_us += self._periods(cell.call, -(-cell.iterations // rounds))
        if self._plan.check:
            for cell in able:
                cell.wrong += self._wrong(case, cell, source, target)
        return [self._row(case, cell, self._gather(cell)) for cell in cells]

    def _obstacle(self, operation: Operation, needed: int) -> str:
        """Why no lane can be measured; empty if that is not known. The same on every rank."""
        if self._ranks < operation.least_ranks:
            return f"it takes at least {operation.least_ranks} ranks"
        if needed < _CHECKED_BYTES:
            return ""
        if self._device.type == "cuda":
            available = torch.cuda.mem_get_info()[0]
        else:
            needed *= _WITH_STAGING * farandole.local_world_size()
            available = memory.available_bytes()
        lacking = f"it needs {needed / GIB:.1f} GiB, and {available / GIB:.1f} GiB are free"
        return next(filter(None, from_all(lacking if needed > available else "")), "")

    def _prepare(self, case: Case, cell: Cell, source: Tensor, target: Tensor) -> None:
        """Makes the call, verifies it, warms up and finds how many iterations fill the time."""
        reason = ""
        try:
            cell.call = cell.lane.call(case.operation, case.op, source, target, self._plan.root)
            cell.wrong = self._wrong(case, cell, source, target)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if cell.lane.name == OURS and not isinstance(
                error, (farandole.NotSupported, farandole.InvalidArgument)
            ):
                raise
            reason = str(error).partition("\n")[0] or type(error).__name__
        cell.cannot = next(filter(None, from_all(reason)), "")
        if cell.cannot or cell.call is None:
            return
        source.zero_(), target.zero_()
        warm_us = self._periods(cell.call, max(1, self._plan.warmup))
        cell.iterations = self._plan.iterations
        if not cell.iterations:
            slowest_us = max(from_all(statistics.median(warm_us)))
            wanted = int(self._plan.seconds * 1e6 / max(slowest_us, 1e-3))
            cell.iterations = max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, wanted))

    def _wrong(self, case: Case, cell: Cell, source: Tensor, target: Tensor) -> int:
        """Wrong elements on this rank of one call on values with known results."""
        assert cell.call is not None
        plan, dtype = self._plan, DTYPES[case.dtype]
        operation, op = case.operation, case.op
        values.spoil(target)
        values.fill(source, values.sent(operation, op, self._rank, self._ranks, dtype))
        cell.call()
        synchronize(self._device)
        if not plan.check:
            return 0
        parts = values.expected(
            operation, op, self._rank, self._ranks, dtype, case.count, plan.root
        )
        return values.wrong_elements(target, parts, values.tolerance(op, self._ranks, dtype))

    def _periods(self, call: Call, iterations: int) -> list[float]:
        """Microseconds of each of ``iterations`` calls, which all ranks begin together."""
        synchronize(self._device)
        farandole.barrier()
        if self._device.type == "cuda":
            return self._periods_of_stream(call, iterations)
        clock = time.perf_counter_ns
        ends = [clock()] * (iterations + 1)
        ends[0] = clock()
        for i in range(1, iterations + 1):
            call()
            ends[i] = clock()
        return [(end - begin) / 1e3 for begin, end in itertools.pairwise(ends)]

    def _periods_of_stream(self, call: Call, iterations: int) -> list[float]:
        """On the device's clock; calls are enqueued one after the other, as nccl-tests does."""
        new_event: Any = torch.cuda.Event
        ends = [new_event(enable_timing=True) for _ in range(iterations + 1)]
        ends[0].record()
        for end in ends[1:]:
            call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e3 for begin, end in itertools.pairwise(ends)]

    def _gather(self, cell: Cell) -> list[dict[str, float]]:
        """The figures of all ranks."""
        if cell.cannot:
            return []
        own = {
            "median": statistics.median(cell.periods_us),
            "p95": percentile(cell.periods_us, 95),
            "wrong": cell.wrong,
        }
        return from_all(own)

    def _row(self, case: Case, cell: Cell, figures: list[dict[str, float]]) -> Row:
        """See docs/bench.md."""
        operation = case.operation
        row: Row = {
            "operation": operation.name,
            "lane": cell.lane.name,
            "ranks": self._ranks,
            "device": self._device.type,
            "dtype": case.dtype,
            "op": case.op,
            "root": self._plan.root if operation.rooted else -1,
            "bytes": case.bytes,
            "count": case.count,
        }
        if cell.cannot:
            return {**row, "cannot": cell.cannot}
        # A rank that runs ahead shows how far it may, not how long the operation takes.
        slowest = max(figures, key=lambda each: each["median"])
        algbw, busbw = bandwidths(operation, case.bytes, slowest["median"], self._ranks)
        wrong = int(sum(each["wrong"] for each in figures))
        return {
            **row,
            "time_us": round(slowest["median"], 3),
            "p95_us": round(slowest["p95"], 3),
            "algbw_gb_s": float(f"{algbw:.6g}"),  # 8 bytes in 1 ms are not 0
            "busbw_gb_s": float(f"{busbw:.6g}"),
            "iterations": len(cell.periods_us),
            "wrong": wrong if self._plan.check else None,
            "verified": self._plan.check and wrong == 0,
        }


def iterate(bench: Bench, plan: Plan, ranks: int) -> Iterator[list[Row]]:
    """The rows of each case in turn. Collective."""
    for case in plan.cases(ranks):
        yield bench.measure(case)
