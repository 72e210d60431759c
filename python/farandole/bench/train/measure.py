# SPDX-License-Identifier: Apache-2.0
"""Verifies the lanes of a cell, measures their memory, and times their steps in turn.

Every rank runs this, with the same cells.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import farandole
from farandole.bench import memory
from farandole.bench.device import synchronize
from farandole.bench.everyone import from_all
from farandole.bench.rounds import interleaved, percentile
from farandole.bench.rows import Row
from farandole.bench.train.lanes import COMMUNICATING, OURS, Trainer
from farandole.bench.train.plan import Cell, Plan
from farandole.bench.train.tasks import (
    Batch,
    Task,
    classification_loss,
    numbers,
    small_model,
    to_device,
)

VERIFIED_STEPS = 3
MOST_STEPS = 200
"""Of one lane in a round."""
_SHARE_OF_MEMORY = 0.6
"""That all lanes of a host may have at the same time; above it they are measured one by one."""
_LOSS_TOLERANCE = {"float32": 1e-3, "bf16": 3e-2, "fp16": 3e-2}


@dataclass
class Times:
    """What a lane has come to on this rank."""

    memory_bytes: int = 0
    parameters: int = 0
    """Elements that are trained."""
    loss: float = 0.0
    digest: str = ""
    """Of the parameters."""
    steps: int = 1
    """In a round."""
    steps_ms: list[float] = field(default_factory=list)
    exposed_ms: list[float] = field(default_factory=list)


class Bench:
    """One rank of a sweep."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._rank, self._ranks = farandole.rank(), farandole.world_size()

    def measure(self, cell: Cell) -> list[Row]:
        """One row a lane; the same on every rank. Collective."""
        task = next(each for each in self._plan.tasks if each.name == cell.model)
        torch.manual_seed(1 + self._rank)
        batch = to_device(task.new_batch(cell.samples_of(self._rank), self._device.type),
                          self._device)  # fmt: skip
        self._load(task, cell, batch)
        times = {lane: Times() for lane in cell.lanes}
        for lane, own in times.items():
            self._verify(lane, own, task, cell, batch)
        faults = self._faults(cell, times)
        sets = [cell.lanes] if self._fit_together(times) else [(lane,) for lane in cell.lanes]
        for lanes in sets:
            self._time(lanes, times, task, cell, batch)
        rows = []
        for lane, own in times.items():
            row = self._row(cell, lane, from_all(own), len(sets) == 1)
            row |= {"parameters": own.parameters, "fault": faults.get(lane)}
            row["verified"] = row["fault"] is None
            rows.append(row)
        return rows

    def _load(self, task: Task, cell: Cell, batch: Batch) -> None:
        """Loads what steps are made of, so that no lane's memory has it."""
        Trainer("limit", task, cell.precision, self._device).step(batch)
        small = numbers(1, self._device.type)
        model = replace(task, new_model=small_model, loss=classification_loss)
        for lane in cell.lanes:
            Trainer(lane, model, cell.precision, self._device).step(to_device(small, self._device))

    def _verify(self, lane: str, own: Times, task: Task, cell: Cell, batch: Batch) -> None:
        """Takes the first steps, in memory that no lane before has left behind."""
        self._settle()
        begin, peak = self._used_bytes(), None
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            peak = memory.Peak()
        trainer = Trainer(lane, task, cell.precision, self._device)
        torch.manual_seed(2 + self._rank)  # for dropout
        for _ in range(VERIFIED_STEPS):
            own.loss = float(trainer.step(batch))
        most = torch.cuda.max_memory_allocated() if peak is None else peak.bytes()
        if peak is not None:
            peak.stop()
        own.memory_bytes = max(0, most - begin)
        own.parameters = sum(each.numel() for each in trainer.parameters)
        digest = hashlib.blake2b(digest_size=16)
        for parameter in trainer.parameters:
            digest.update(_bytes_of(parameter))
        own.digest = digest.hexdigest()

    def _faults(self, cell: Cell, times: dict[str, Times]) -> dict[str, str]:
        """By lane: why it does not train as the others do. The same on every rank."""
        found: dict[str, str] = {}
        losses: dict[str, float] = {}
        for lane, own in times.items():
            everyone: list[Times] = from_all(own)
            losses[lane] = statistics.fmean(each.loss for each in everyone)
            if not math.isfinite(losses[lane]):
                found[lane] = f"the loss is {losses[lane]}"
            elif lane in COMMUNICATING and len({each.digest for each in everyone}) > 1:
                found[lane] = "ranks have different parameters"
        sound = losses.keys() - found.keys()
        reference = next((losses[lane] for lane in ("torch", *OURS) if lane in sound), None)
        for lane in sound & set(COMMUNICATING):
            assert reference is not None
            if not math.isclose(losses[lane], reference, rel_tol=_LOSS_TOLERANCE[cell.precision]):
                found[lane] = f"its loss is {losses[lane]:.6g}, that of the others {reference:.6g}"
        return found

    def _time(
        self, lanes: Sequence[str], times: dict[str, Times], task: Task, cell: Cell, batch: Batch
    ) -> None:
        """Rounds in which these lanes take turns."""
        self._settle()
        trainers = {}
        for lane in lanes:
            trainer = trainers[lane] = Trainer(lane, task, cell.precision, self._device)
            self._steps(trainer, batch, Times(), 2)  # torch makes its buckets anew after the first
            warm = Times()
            self._steps(trainer, batch, warm, 1)
            step_ms = max(from_all(warm.steps_ms[0]))
            wanted = self._plan.seconds * 1e3 / self._plan.rounds / max(step_ms, 1e-3)
            times[lane].steps = max(1, min(MOST_STEPS, int(wanted)))
        for turn in interleaved(list(lanes), self._plan.rounds):
            for lane in turn:
                self._steps(trainers[lane], batch, times[lane], times[lane].steps)

    def _steps(self, trainer: Trainer, batch: Batch, own: Times, count: int) -> None:
        """Steps one after the other, which all ranks begin together."""
        synchronize(self._device)
        farandole.barrier()
        ends = [time.perf_counter_ns()]
        for _ in range(count):
            trainer.step(batch)
            synchronize(self._device)
            ends.append(time.perf_counter_ns())
            exposed_ms = trainer.exposed_ms()
            if exposed_ms is not None:
                own.exposed_ms.append(exposed_ms)
        own.steps_ms += [(end - begin) / 1e6 for begin, end in itertools.pairwise(ends)]

    def _fit_together(self, times: dict[str, Times]) -> bool:
        """Whether all lanes fit into memory at the same time, on every rank."""
        needed = sum(own.memory_bytes for own in times.values())
        if self._device.type == "cuda":
            available = torch.cuda.mem_get_info()[0]
        else:
            needed *= farandole.local_world_size()
            available = memory.available_bytes()
        return all(from_all(needed <= _SHARE_OF_MEMORY * available))

    def _settle(self) -> None:
        """Gives back the memory of what was measured before."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            ctypes.CDLL(None).malloc_trim(0)
        farandole.barrier()

    def _used_bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated()
        return memory.share_bytes()

    def _row(self, cell: Cell, lane: str, everyone: list[Times], in_turn: bool) -> Row:
        """See docs/bench.md."""
        # Without communication ranks drift apart: the mean is what all together take for a step.
        steps = [
            statistics.fmean(step)
            for step in zip(*(each.steps_ms for each in everyone), strict=True)
        ]
        median = statistics.median(steps)
        exposed = [ms for each in everyone for ms in each.exposed_ms]
        return {
            "model": cell.model,
            "precision": cell.precision,
            "ranks": self._ranks,
            "local_ranks": farandole.local_world_size(),
            "global_batch": cell.global_batch,
            "lane": lane,
            "device": self._device.type,
            "median_ms": round(median, 4),
            "quartiles_ms": [round(percentile(steps, each), 4) for each in (25, 75)],
            "samples_per_s": round(cell.global_batch / median * 1e3, 4),
            "exposed_ms": round(statistics.median(exposed), 4) if exposed else None,
            "memory_bytes": max(each.memory_bytes for each in everyone),
            "steps": len(steps),
            "in_turn": in_turn,
        }


def _bytes_of(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy()
