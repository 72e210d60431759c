# SPDX-License-Identifier: Apache-2.0
"""Schedulers, scalers and values in a folder of torch.distributed.checkpoint."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import numpy as np
import pytest
import torch
from farandole import CheckpointError
from torch import nn, optim
from torch.optim import lr_scheduler

import ranks
from saved_by_torch import save_alone


def _chained(optimizer: optim.Optimizer) -> Any:
    constant = lr_scheduler.ConstantLR(optimizer, total_iters=5)
    steps = lr_scheduler.MultiStepLR(optimizer, [4, 6])
    return lr_scheduler.ChainedScheduler([constant, steps], optimizer)


def _sequential(optimizer: optim.Optimizer) -> Any:
    linear = lr_scheduler.LinearLR(optimizer, total_iters=3)
    steps = lr_scheduler.MultiStepLR(optimizer, [1, 4])
    return lr_scheduler.SequentialLR(optimizer, [linear, steps], [3])


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "steps": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 5, 5, 8]),
    "chained": _chained,
    "sequential": _sequential,
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
}


def _goes_on(optimizer: optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def _schedules(rank: int, size: int, path: str) -> None:
    warnings.simplefilter("ignore")
    for name, make in SCHEDULERS.items():
        optimizer = optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
        scheduler = make(optimizer)
        _goes_on(optimizer, scheduler, 2)
        saved = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        folder = save_alone(Path(path, name), saved)
        expected = _goes_on(optimizer, scheduler, 8)
        fresh = optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
        loaded = make(fresh)
        farandole.load_checkpoint(folder, optimizer=fresh, scheduler=loaded)
        assert _goes_on(fresh, loaded, 8) == expected, name


def test_schedulers_go_on_though_the_folder_has_all_keys_as_text(tmp_path: Path) -> None:
    ranks.run(_schedules, 1, str(tmp_path))


def _other_milestones(rank: int, size: int, path: str) -> None:
    """The present ones tell the kind of keys alone."""
    warnings.simplefilter("ignore")
    optimizer = optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [2, 30])
    folder = save_alone(Path(path, "saved"), {"scheduler": scheduler.state_dict()})
    for present in ([], [30, 40]):
        loaded = lr_scheduler.MultiStepLR(optimizer, present)
        farandole.load_checkpoint(folder, scheduler=loaded)
        assert loaded.milestones == scheduler.milestones


def test_milestones_of_another_schedule_are_replaced(tmp_path: Path) -> None:
    ranks.run(_other_milestones, 1, str(tmp_path))


def _disabled(rank: int, size: int, path: str) -> None:
    """Its state has nothing, of which a folder has nothing."""
    net = nn.Linear(2, 2)
    saved = {"model": net.state_dict(), "scaler": farandole.GradScaler(enabled=False).state_dict()}
    folder = save_alone(Path(path, "saved"), saved)
    farandole.load_checkpoint(folder, model=net, scaler=farandole.GradScaler(enabled=False))
    with pytest.raises(CheckpointError, match="no state of a scaler"):
        farandole.load_checkpoint(folder, model=net, scaler=farandole.GradScaler())


def test_a_disabled_scaler_is_loaded(tmp_path: Path) -> None:
    ranks.run(_disabled, 1, str(tmp_path))


def _values(rank: int, size: int, path: str) -> None:
    lines: list[str] = []
    logger = logging.getLogger("farandole")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    saved = {
        "model": nn.Linear(2, 2).state_dict(),
        "best": np.float64(0.5),
        "count": np.int64(3),
        "is_best": np.bool_(True),
        "history": {"losses": torch.ones(3), "epochs": 1},
        "at": {1: 0.5},
        "none": {},
    }
    folder = save_alone(Path(path, "saved"), saved)
    values = farandole.load_checkpoint(folder, model=nn.Linear(2, 2))
    expected = {
        "best": 0.5,
        "count": 3,
        "is_best": True,
        "history": {"epochs": 1},
        "at": {"1": 0.5},
    }
    assert values == expected
    assert [type(values[name]) for name in ("best", "count", "is_best")] == [float, int, bool]
    assert [line for line in lines if "the tensors of history alone" in line]
    assert not [line for line in lines if "saved by" in line]


def test_numbers_of_numpy_are_values(tmp_path: Path) -> None:
    ranks.run(_values, 1, str(tmp_path))
