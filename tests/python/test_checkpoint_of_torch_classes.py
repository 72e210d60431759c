# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose state in a folder of torch.distributed.checkpoint is that of another class."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole import CheckpointError, ZeroRedundancyOptimizer
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import ranks
from saved_by_torch import save_alone

Make = Callable[[Iterable[Tensor]], optim.Optimizer]

CLASSES: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, lr=0.125, momentum=0.5),
    "Adam": lambda p: optim.Adam(p, lr=0.125),
    "amsgrad": lambda p: optim.Adam(p, lr=0.125, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.125),
    "Adamax": lambda p: optim.Adamax(p, lr=0.125),
    "NAdam": lambda p: optim.NAdam(p, lr=0.125),
    "RAdam": lambda p: optim.RAdam(p, lr=0.125),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.125),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.125, centered=True, momentum=0.5),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Rprop": lambda p: optim.Rprop(p, lr=0.125),
    "ASGD": lambda p: optim.ASGD(p, lr=0.125),
    "LAMB": lambda p: farandole.optim.LAMB(p, lr=0.125),
    "LARS": lambda p: farandole.optim.LARS(p, lr=0.125),
}
SAME = {frozenset({"Adam", "amsgrad"})}
"""Of which each loads the other, with the options that were saved."""


def net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def step(model: nn.Module, optimizer: optim.Optimizer) -> list[list[float]]:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).square().sum().backward()
    optimizer.step()
    return [p.detach().reshape(-1).tolist() for p in model.parameters()]


def _classes(rank: int, size: int, path: str) -> None:
    for name, make in CLASSES.items():
        model = net()
        optimizer = make(model.parameters())
        step(model, optimizer)
        saved = {"optimizer": get_optimizer_state_dict(model, optimizer)}
        folder = save_alone(Path(path, name), saved | {"model": model.state_dict()})
        expected = step(model, optimizer)
        for other, make_other in CLASSES.items():
            fresh = net()
            loaded = make_other(fresh.parameters())
            if other != name and frozenset({name, other}) not in SAME:
                with pytest.raises(CheckpointError, match="checkpoint-other-optimizer"):
                    farandole.load_checkpoint(folder, model=fresh, optimizer=loaded)
                continue
            farandole.load_checkpoint(folder, model=fresh, optimizer=loaded)
            got = step(fresh, loaded)
            torch.testing.assert_close(torch.tensor(got[0]), torch.tensor(expected[0]))


def test_only_the_class_that_was_saved_is_loaded(tmp_path: Path) -> None:
    ranks.run(_classes, 1, str(tmp_path))


def _save(path: Path, optimizer_class: Any) -> str:
    model = net()
    optimizer = optimizer_class(model.parameters())
    step(model, optimizer)
    saved = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    return save_alone(path, saved | {"model": model.state_dict()})


def _unchanged(rank: int, size: int, path: str) -> None:
    """All that refuses a state does so before the model is changed."""
    for name, optimizer_class in (
        ("class", optim.AdamW),
        ("state", optim.AdamW),
        ("rate", optim.SGD),
        ("names", optim.Adamax),
        ("step", optim.Adam),
    ):
        model = nn.Linear(3, 2)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class, lr=0.5)
        with pytest.raises(CheckpointError, match="checkpoint-other-optimizer"):
            farandole.load_checkpoint(f"{path}/{name}", model=model, optimizer=optimizer)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_state_that_is_refused_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    _save(tmp_path / "class", optim.Adamax)
    for name, optimizer_class in (("state", optim.AdamW), ("names", optim.Adamax)):
        _save(tmp_path / name, optimizer_class)
        metadata = pickle.loads((tmp_path / name / ".metadata").read_bytes())
        lost = "exp_avg_sq" if name == "state" else "exp_inf"
        del metadata.state_dict_metadata[f"optimizer.state.weight.{lost}"]
        (tmp_path / name / ".metadata").write_bytes(pickle.dumps(metadata))
    model = net()
    wrong = optim.SGD(model.parameters(), lr=0.5)
    wrong.param_groups[0]["momentum"] = -1.0
    saved = {"optimizer": wrong.state_dict(), "model": model.state_dict()}
    save_alone(tmp_path / "rate", saved)
    wrong = optim.Adam(model.parameters())
    step(model, wrong)
    wrong.state[model.bias]["step"].fill_(torch.nan)
    saved = {"optimizer": wrong.state_dict(), "model": model.state_dict()}
    save_alone(tmp_path / "step", saved)
    ranks.run(_unchanged, 2, str(tmp_path))


def _other_shapes(rank: int, size: int, path: str) -> None:
    """Without the model nothing else would tell."""
    model = net()
    optimizer = optim.Adam(model.parameters())
    step(model, optimizer)
    farandole.save_checkpoint(f"{path}/ours", optimizer=optimizer).wait()
    save_alone(Path(path, "torchs"), {"optimizer": optimizer.state_dict()})
    for folder in ("ours", "torchs"):
        for sizes in ((3, 4), (2, 2)):
            loaded = optim.Adam(nn.Linear(*sizes).parameters(), lr=0.5)
            with pytest.raises(CheckpointError, match=r"of .* with the shape"):
                farandole.load_checkpoint(f"{path}/{folder}", optimizer=loaded)
            assert not loaded.state
            assert loaded.param_groups[0]["lr"] == 0.5
    single = nn.Linear(3, 1)  # whose bias has one element, which stands in the text
    of_single = optim.Adam([single.bias])
    step(single, of_single)
    farandole.save_checkpoint(f"{path}/single", optimizer=of_single).wait()
    with pytest.raises(CheckpointError, match=r"of .* with the shape"):
        farandole.load_checkpoint(f"{path}/single", optimizer=optim.Adam([nn.Linear(3, 4).bias]))


def test_states_of_other_shapes_are_refused_without_a_model(tmp_path: Path) -> None:
    ranks.run(_other_shapes, 1, str(tmp_path))


def _hooked(rank: int, size: int, path: str) -> None:
    """What a hook may change is compared after it alone."""
    model = nn.Linear(3, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=0.5)

    def twice(_: optim.Optimizer, state: dict[str, Any]) -> None:
        state["param_groups"][0]["lr"] *= 2

    optimizer.register_load_state_dict_pre_hook(twice)
    farandole.load_checkpoint(path, model=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 2e-3
    assert all(int(each.rest["step"]) == 1 for each in optimizer.owned_states())


def test_hooks_of_loads_are_called_once(tmp_path: Path) -> None:
    ranks.run(_hooked, 2, _save(tmp_path / "saved", optim.AdamW))
