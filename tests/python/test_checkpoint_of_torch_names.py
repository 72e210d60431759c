# SPDX-License-Identifier: Apache-2.0
"""What load_checkpoint() takes of a folder of torch.distributed.checkpoint, by its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole import CheckpointError
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import ranks
from saved_by_torch import save_alone


def _linear(value: float) -> nn.Linear:
    net = nn.Linear(3, 2)
    with torch.no_grad():
        for each in net.parameters():
            each.fill_(value)
    return net


def _weights_of(value: float) -> dict[str, Tensor]:
    return dict(_linear(value).state_dict())


AVERAGED = optim.swa_utils.AveragedModel(_linear(2.0)).state_dict()
IN_DDP = {f"module.{name}": value for name, value in _weights_of(3.0).items()}

PICKS: dict[str, tuple[dict[str, Any], float | None]] = {
    "an average beside another name": ({"net": _weights_of(1.0), "ema": AVERAGED}, None),
    "an average beside model": ({"model": _weights_of(1.0), "ema": AVERAGED}, 1.0),
    "two in wrappers": ({"model": IN_DDP, "ema": AVERAGED}, 3.0),
    "a teacher in DDP": ({"student": _weights_of(1.0), "teacher": IN_DDP}, None),
    "a best model": ({"net": _weights_of(1.0), "best": {"model": _weights_of(4.0)}}, None),
    "a model before": ({"net": _weights_of(1.0), "old": {"state_dict": _weights_of(4.0)}}, None),
    "a model within model": ({"net": _weights_of(1.0), "model": {"b": _weights_of(4.0)}}, None),
    "one in a wrapper": ({"app": {"net": IN_DDP}}, 3.0),
}
"""By what is saved: which weights are loaded, or None if it could be any."""


def _picks(rank: int, size: int, path: str) -> None:
    for index, (saved, expected) in enumerate(PICKS.values()):
        folder = save_alone(Path(path, str(index)), saved)
        net = _linear(0.0)
        if expected is None:
            with pytest.raises(CheckpointError, match="checkpoint-dcp-ambiguous"):
                farandole.load_checkpoint(folder, model=net)
        else:
            farandole.load_checkpoint(folder, model=net)
        assert net.weight[0, 0].item() == (expected or 0.0), saved.keys()


def test_a_model_of_several_is_taken_by_its_top_level_name_alone(tmp_path: Path) -> None:
    ranks.run(_picks, 1, str(tmp_path))


def _stepped(lr: float) -> tuple[nn.Linear, optim.Optimizer]:
    net = _linear(1.0)
    optimizer = optim.Adam(net.parameters(), lr=lr)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return net, optimizer


def _picks_optimizers(rank: int, size: int, path: str) -> None:
    (net, live), (other, old) = _stepped(0.125), _stepped(0.25)
    of_live, of_old = get_optimizer_state_dict(net, live), get_optimizer_state_dict(other, old)
    for name, is_clear in (("opt", False), ("optim", True)):
        saved = {"model": net.state_dict(), name: of_live, "old": {"optimizer": of_old}}
        folder = save_alone(Path(path, name), saved)
        loaded = optim.Adam(net.parameters(), lr=1.0)
        if is_clear:
            farandole.load_checkpoint(folder, model=net, optimizer=loaded)
            assert loaded.param_groups[0]["lr"] == 0.125
        else:
            with pytest.raises(CheckpointError, match="checkpoint-dcp-ambiguous"):
                farandole.load_checkpoint(folder, model=net, optimizer=loaded)


def test_an_optimizer_of_several_is_taken_by_its_top_level_name_alone(tmp_path: Path) -> None:
    ranks.run(_picks_optimizers, 1, str(tmp_path))
