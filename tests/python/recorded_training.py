# SPDX-License-Identifier: Apache-2.0
"""A short training of each rank that is recorded, and what its report says."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import farandole
import torch
from farandole import profiler
from farandole.profiler import Profile, ProfilerReport, RuleReport
from farandole.report.comparison import comparison_of
from farandole.report.figures import figures_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Work = Callable[[int], Any]


class Samples(Dataset[Tensor]):
    """Of which each takes as long as ``read`` does."""

    def __init__(self, count: int, read: Work) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        self._read(index)
        return torch.randn(8, 32)


class Net(nn.Module):
    """Its forward takes as long as ``compute`` does, which gets the number of the step."""

    def __init__(self, compute: Work) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self._compute, self._step = compute, 0

    def forward(self, x: Tensor) -> Tensor:
        self._compute(self._step)
        self._step += 1
        output: Tensor = self.layer(x)
        return output


def loader(samples: Sized, workers: int = 0) -> DataLoader[Tensor]:
    """Batches of a sample."""
    context = "fork" if workers else None
    return DataLoader(samples, 1, num_workers=workers, multiprocessing_context=context)  # type: ignore[arg-type]


def train(folder: str, batches: DataLoader[Tensor], compute: Work, after_step: Work = int) -> None:
    """Records steps on these batches."""
    model = farandole.DistributedDataParallel(Net(compute))
    optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    gc.disable()  # what comes by itself is not planted
    epoch = iter(batches)
    first = next(epoch)  # workers have begun before the recorder does
    profiler.start(folder, system_interval_ms=100)
    for step, x in enumerate(itertools.chain([first], epoch)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        after_step(step)
    profiler.stop()


def fired(folder: Path, **parameters: Any) -> list[RuleReport]:
    """Of the rules that fired, in the order in which a report shows them."""
    reports = ProfilerReport(**parameters).reports(Profile(folder))
    return [report for report in reports if report.fired]


def names(reports: list[RuleReport]) -> list[str]:
    return [report.rule for report in reports]


def speedup(before: Path, after: Path) -> float:
    """What `farandole report --compare` shows."""
    found = comparison_of(*(figures_of(Profile(folder)) for folder in (before, after)))
    return float(found["step"]["speedup"])


def among_other_programs(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Runs a test up to three times, as other programs take cores, disks and memory of this host.

    Only what the test itself asserts is tried again, not what ranks raise.
    """

    @functools.wraps(test)
    def repeated(tmp_path: Path) -> None:
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            try:
                test(folder)
            except (AssertionError, IndexError) as error:
                where = error.__traceback__
                while where and where.tb_next:
                    where = where.tb_next
                is_own = where is not None and where.tb_frame.f_code is test.__code__
                if number == 2 or not is_own:
                    raise
            else:
                return

    return repeated
