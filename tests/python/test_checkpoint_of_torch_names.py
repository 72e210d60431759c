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
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
)

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


def _listed(order: tuple[int, int]) -> tuple[nn.ParameterList, optim.Optimizer]:
    net = nn.ParameterList([torch.zeros(2), torch.zeros(2)])
    groups = [{"params": [net[i]], "lr": (0.125, 0.25)[i]} for i in order]
    return net, optim.SGD(groups, momentum=0.5)


def _digits(rank: int, size: int, path: str) -> None:
    """Groups are found by the names "0" and "1", in any order."""
    net, optimizer = _listed((0, 1))
    (net[0].sum() + 8 * net[1].sum()).backward()
    optimizer.step()
    for is_flat in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
        of_optimizer = get_optimizer_state_dict(net, optimizer, options=options)
        saved = {"model": net.state_dict(), "optimizer": of_optimizer}
        folder = save_alone(Path(path, f"flat-{is_flat}"), saved)
        for order in ((1, 0), (0, 1)):
            fresh, loaded = _listed(order)
            farandole.load_checkpoint(folder, model=fresh, optimizer=loaded)
            for number, lr, momentum in ((0, 0.125, 1.0), (1, 0.25, 8.0)):
                assert loaded.param_groups[order.index(number)]["lr"] == lr
                assert loaded.state[fresh[number]]["momentum_buffer"].tolist() == [momentum] * 2


def test_names_that_are_digits_are_no_numbers(tmp_path: Path) -> None:
    ranks.run(_digits, 1, str(tmp_path))


class Tied(nn.Module):
    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        if is_tied:
            self.last.weight = self.first.weight


def _ties(rank: int, size: int, path: str) -> None:
    net = Tied(is_tied=False)
    differ = save_alone(Path(path, "differ"), {"model": net.state_dict()})
    with torch.no_grad():
        net.first.weight[0, 0] = torch.nan
        net.last.weight.copy_(net.first.weight)
    alike = save_alone(Path(path, "alike"), {"model": net.state_dict()})
    tied = Tied(is_tied=True)
    before = tied.first.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"'model\.first\.weight' than in '"):
        farandole.load_checkpoint(differ, model=tied)
    assert torch.equal(before, tied.first.weight)
    farandole.load_checkpoint(alike, model=tied)
    assert tied.first.weight.isnan().sum() == 1
    assert torch.equal(tied.first.weight[1:], net.first.weight[1:])


def test_weights_that_differ_are_not_loaded_into_tied_ones(tmp_path: Path) -> None:
    ranks.run(_ties, 1, str(tmp_path))


def _two(lr: float) -> tuple[nn.Sequential, list[optim.Optimizer]]:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    adam = optim.Adam(net[0].parameters(), lr=lr)
    return net, [adam, optim.SGD(net[1].parameters(), lr=2 * lr, momentum=0.5)]


def _merged(rank: int, size: int, path: str) -> None:
    net, optimizers = _two(0.125)
    net(torch.ones(1, 3)).sum().backward()
    for each in optimizers:
        each.step()
    of_model, of_optimizers = get_state_dict(net, optimizers)
    merged = save_alone(Path(path, "merged"), {"model": of_model, "optimizer": of_optimizers})
    fresh, (a, b) = _two(1.0)
    farandole.load_checkpoint(merged, model=fresh, optimizer={"a": a, "b": b})
    assert (a.param_groups[0]["lr"], b.param_groups[0]["lr"]) == (0.125, 0.25)
    for loaded, saved, layer in ((a, optimizers[0], 0), (b, optimizers[1], 1)):
        for name, value in saved.state[net[layer].weight].items():
            assert torch.equal(loaded.state[fresh[layer].weight][name], value)
    numbers = {"model": of_model, "optimizer": optimizers[0].state_dict()}  # those of one
    of_one = save_alone(Path(path, "one"), numbers)
    with pytest.raises(CheckpointError, match="no optimizer below the name 'a'"):
        farandole.load_checkpoint(of_one, model=fresh, optimizer={"a": a, "b": b})


def test_several_optimizers_in_one_are_loaded_together(tmp_path: Path) -> None:
    ranks.run(_merged, 1, str(tmp_path))
