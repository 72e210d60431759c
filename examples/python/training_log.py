# SPDX-License-Identifier: Apache-2.0
"""What a training reports: lines, a CSV file, TensorBoard's events, a progress bar."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from progress import Progress
from torch.utils.data import DataLoader

T = TypeVar("T")


class TrainingLog:
    """Rows of numbers by step: printed, and in `folder` as log.csv and for TensorBoard.

    Only rank 0 has one that writes: without a folder nothing is written.
    """

    def __init__(
        self, folder: Path | None, columns: list[str], step: int, steps: int, epoch_steps: int
    ) -> None:
        """Goes on after `step` of `steps`: rows of later steps, which will come again, go."""
        self.columns, self.folder, self.board = ["step", *columns], folder, None
        self.progress, self.epoch_steps = Progress(step, steps), max(epoch_steps, 1)
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.path, rows = folder / "log.csv", []
        if step and self.path.exists():
            with self.path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("TensorBoard is not installed: the log is in log.csv alone", flush=True)
        else:
            self.board = SummaryWriter(str(folder), purge_step=step)

    def write(self, step: int, **values: float) -> None:
        """A row; columns without a value stay empty."""
        if self.folder is None:
            return
        row = {name: f"{value:.9g}" for name, value in values.items()}
        numbers = ", ".join(f"{name} {text}" for name, text in row.items())
        epoch, epochs = -(-step // self.epoch_steps), self.progress.steps // self.epoch_steps
        where = f"epoch {epoch} of {epochs}, {self.progress.left(step)} left"
        print(f"step {step}: {numbers}; {where}", flush=True)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow({"step": step, **row})
        if self.board:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)


def progress_bar(loader: DataLoader[T], epoch: int, *, shown: bool) -> Iterable[T]:
    """The batches, with a bar by tqdm on a terminal, if it is installed."""
    if not shown or not sys.stderr.isatty():
        return loader
    try:
        from tqdm import tqdm
    except ImportError:
        if epoch == 0:
            print("tqdm is not installed: no progress bar", flush=True)
        return loader
    return tqdm(loader, f"epoch {epoch}", leave=False)
