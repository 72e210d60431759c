# SPDX-License-Identifier: Apache-2.0
"""One rank of `farandole bench train`; rank 0 prints, and saves each cell when it is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import farandole
from farandole.bench import machine, rows
from farandole.bench.device import own_device
from farandole.bench.outcome import RIGHT, WRONG
from farandole.bench.progress import Progress
from farandole.bench.ranks import launcher
from farandole.bench.train import table
from farandole.bench.train.measure import Bench
from farandole.bench.train.plan import Cell, Plan, key_of, pending
from farandole.errors import Error


def run(plan: Plan, results: Path, most_ranks: int, *, single: list[int]) -> int:
    """Measures what the file of results lacks; returns the exit status.

    Args:
        plan: The checked options.
        results: Rows of this run and of earlier ones; rank 0 reads and writes it.
        most_ranks: Of the whole sweep; strong scaling has its batch.
        single: The numbers of ranks whose batches one process with all cores takes; empty: this is
            not that process.
    """
    device = own_device(plan.device)
    farandole.init_process_group()
    is_first = farandole.rank() == 0
    ranks = farandole.world_size()
    where = machine.describe(plan.device)
    where |= {"launcher": launcher(), "device": plan.device, "threads": torch.get_num_threads()}
    cells = list(plan.single_cells(single) if single else plan.cells(ranks, most_ranks))
    todo: list[Cell | None] = []
    if is_first:
        done = {key_of(row) for row in rows.read(results)}
        todo = [pending(cell, done, where) for cell in cells]
    told = [todo]
    dist.broadcast_object_list(told)
    left = [cell for cell in told[0] if cell is not None]
    progress = Progress(len(left), shown=is_first)
    bench = Bench(plan, device)
    status = RIGHT
    try:
        for cell in left:
            progress.begin(f"{cell.model} {cell.precision}, global batch {cell.global_batch}, "
                           f"{ranks} rank{'s' * (ranks > 1)}")  # fmt: skip
            for figures in bench.measure(cell):
                row = {**figures, **where}
                if row["fault"] is not None:
                    status = WRONG
                if is_first:
                    if row["fault"] is None:
                        with rows.writing("--output", results):
                            rows.append(results, row)
                    print(table.line_of(row), flush=True)
            progress.end()
    except Error as error:
        print(f"farandole bench: rank {farandole.rank()}: {error}", file=sys.stderr)
        return WRONG
    farandole.destroy()
    return status
