# SPDX-License-Identifier: Apache-2.0
"""What a sweep measures: cells, each on one number of ranks. The same on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farandole.bench.rows import Row
from farandole.bench.train.tasks import Task

Key = tuple[object, ...]

_CELL = ("model", "precision", "ranks", "global_batch", "lane", "device")
_WHERE = ("threads", "cpu", "accelerator", "torch", "farandole")
_FIGURES = ("median_ms", "quartiles_ms", "samples_per_s", "exposed_ms", "memory_bytes")
FIELDS = (*_CELL, *_WHERE, *_FIGURES, "parameters", "cores", "timestamp")
"""Those of a row that are read again."""


@dataclass(frozen=True)
class Cell:
    """One model in one precision, with one batch over some ranks."""

    model: str
    precision: str
    ranks: int
    global_batch: int
    """Samples of all ranks together in a step."""
    lanes: tuple[str, ...]

    def samples_of(self, rank: int) -> int:
        """The batch of one rank; batches differ by one sample at most."""
        return self.global_batch // self.ranks + (rank < self.global_batch % self.ranks)


@dataclass(frozen=True)
class Plan:
    """The checked options."""

    tasks: list[Task]
    precisions: list[str]
    scalings: list[str]
    lanes: list[str]
    """Without "single", which has cells of its own."""
    with_single: bool
    batch_size: int | None
    """Of each rank in weak scaling; None: the task's own."""
    global_batch_size: int | None
    """Of all ranks in strong scaling; None: what the most ranks have in weak scaling."""
    seconds: float
    rounds: int
    device: str

    def samples(self, task: Task) -> int:
        """Of each rank in weak scaling."""
        default = task.samples_on_cpu if self.device == "cpu" else task.samples_on_gpu
        return self.batch_size or default

    def global_batches(self, task: Task, ranks: int, most_ranks: int) -> list[int]:
        """The global batches on so many ranks: of weak scaling, of strong scaling; once if equal.

        A strong batch with fewer samples than ranks is left out.
        """
        found = []
        if "weak" in self.scalings:
            found.append(self.samples(task) * ranks)
        if "strong" in self.scalings:
            strong = self.global_batch_size or self.samples(task) * most_ranks
            found += [strong] if strong >= ranks else []
        return list(dict.fromkeys(found))

    def cells(self, ranks: int, most_ranks: int) -> Iterator[Cell]:
        """Those that ``ranks`` ranks measure."""
        for task in self.tasks:
            for precision in self.precisions:
                for batch in self.global_batches(task, ranks, most_ranks):
                    yield Cell(task.name, precision, ranks, batch, tuple(self.lanes))

    def single_cells(self, counts: Sequence[int]) -> Iterator[Cell]:
        """Those of one process with all cores: every global batch of the others."""
        if not self.with_single:
            return
        for task in self.tasks:
            for precision in self.precisions:
                batches = [self.global_batches(task, count, max(counts)) for count in counts]
                for batch in dict.fromkeys(sorted(each for some in batches for each in some)):
                    yield Cell(task.name, precision, 1, batch, ("single",))


def key_of(row: Row) -> Key:
    """What tells rows apart: one that is there already is not measured again."""
    return tuple(row.get(name) for name in (*_CELL, *_WHERE))


def pending(cell: Cell, done: set[Key], where: Row) -> Cell | None:
    """The cell with the lanes that have not been measured here; None if all have."""
    row = {**where, "model": cell.model, "precision": cell.precision, "ranks": cell.ranks}
    row["global_batch"] = cell.global_batch
    left = tuple(lane for lane in cell.lanes if key_of({**row, "lane": lane}) not in done)
    if not left:
        return None
    return Cell(cell.model, cell.precision, cell.ranks, cell.global_batch, left)
