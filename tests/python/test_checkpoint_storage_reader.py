# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint.load() of what save_checkpoint() has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed.checkpoint as dcp
from farandole import CheckpointStorageReader, DistributedDataParallel
from farandole.checkpoint import strided_reads
from torch import nn, optim
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import ranks
from test_checkpoint_of_torch import GLOO, STEPS, adamw, close, model, train, weights
from test_torch_state_dict import channels_last, plain, sharded

VALUES = {
    "epoch": 4,
    "best": [1.5, (2, "x")],
    "curve": torch.arange(6.0).reshape(2, 3),
    "pair": (1, torch.arange(3.0)),  # into tuples planners do not look
}


def _saves(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(channels_last(model()))
    optimizer = sharded(net.module, "AdamW")
    train(net, optimizer, 0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2)
    farandole.save_checkpoint(
        path, model=net, optimizer=optimizer, scheduler=scheduler, values=VALUES
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("saved"))
    ranks.run(_saves, 3, path)
    return path


def expected_end() -> list[list[float]]:
    net = channels_last(model())
    optimizer = plain(net, "AdamW")
    train(net, optimizer, 0)
    train(net, optimizer, STEPS)
    return weights(net)


def load_into(net: Any, optimizer: optim.Optimizer, path: str, flattened: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    of_model, of_optimizer = get_state_dict(net, optimizer, options=options)
    state = {"net": of_model, "optim": of_optimizer}
    reader = CheckpointStorageReader(
        path, model="net", optimizer="optim", flatten_optimizer_state_dict=flattened
    )
    dcp.load(state, storage_reader=reader)
    set_state_dict(
        net,
        optimizer,
        model_state_dict=state["net"],
        optim_state_dict=state["optim"],
        options=options,
    )


def _loads(rank: int, size: int, path: str, flattened: bool, kind: str) -> None:
    if kind == "sharded":
        net: Any = DistributedDataParallel(model(seed=1))
        optimizer: optim.Optimizer = sharded(net.module, "AdamW")
    else:
        net = model(seed=1)
        if kind == "fully_shard":
            fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
        optimizer = plain(net, "AdamW")
    load_into(net, optimizer, path, flattened)
    train(net, optimizer, STEPS)
    got = [
        (each.full_tensor() if isinstance(each, DTensor) else each).detach().reshape(-1).tolist()
        for each in net.state_dict().values()
    ]
    close(got, expected_end())


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("kind", ["plain", "sharded", "fully_shard"])
def test_torchs_load_reads_models_and_optimizers(kind: str, flattened: bool, saved: str) -> None:
    ranks.run(_loads, 1, saved, flattened, kind, setup=GLOO)
    ranks.run(_loads, 2, saved, flattened, kind, setup=GLOO)


def _loads_named(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model(seed=1))
    named = list(net.module.named_parameters())
    table = [pair for pair in named if "table" in pair[0]]
    others = [pair for pair in named if "table" not in pair[0]]
    groups = [{"params": table, "lr": 0.125}, {"params": others}]
    optimizer = farandole.ZeroRedundancyOptimizer(groups, optim.AdamW, lr=0.0625)
    for flattened in (False, True):
        load_into(net, optimizer, path, flattened)
    train(net, optimizer, STEPS)
    close(weights(net.module), expected_end())


def test_optimizers_may_know_the_names_of_parameters(saved: str) -> None:
    ranks.run(_loads_named, 2, saved)


def _loads_columns(rank: int, size: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (size,))
    whole = {"model.table": torch.zeros(2, 3, 5), "model.first.0.weight": torch.zeros(7, 5)}
    columns = {
        key: distribute_tensor(each.clone(), mesh, [Shard(each.dim() - 1)])
        for key, each in whole.items()
    }
    dcp.load(whole, storage_reader=CheckpointStorageReader(path))
    for most in (strided_reads._MOST_BYTES, 0):  # in one read, and in many
        strided_reads._MOST_BYTES = most
        dcp.load(columns, storage_reader=CheckpointStorageReader(path))
        for key, each in columns.items():
            assert torch.equal(each.full_tensor(), whole[key])
            assert whole[key].any()
            each.to_local().zero_()


def test_columns_are_read_of_rows(saved: str) -> None:
    ranks.run(_loads_columns, 2, saved, setup=GLOO)


def test_what_else_is_there_is_read_by_name(saved: str) -> None:
    state: dict[str, Any] = {
        "epoch": 0,
        "best": None,
        "curve": torch.zeros(2, 3),
        "pair": None,
        "scheduler": {"last_epoch": -1, "step_size": 0},
    }
    dcp.load(state, storage_reader=CheckpointStorageReader(saved), no_dist=True)
    assert state["epoch"] == 4
    assert state["best"] == [1.5, (2, "x")]
    assert torch.equal(state["curve"], VALUES["curve"])
    assert state["pair"][0] == 1
    assert torch.equal(state["pair"][1], torch.arange(3.0))
    assert state["scheduler"] == {"last_epoch": 0, "step_size": 2}
    with pytest.raises(CheckpointException, match=r"model\.other"):
        dcp.load(
            {"model": {"other": torch.zeros(3)}},
            storage_reader=CheckpointStorageReader(saved),
            no_dist=True,
        )


def test_all_of_it_becomes_one_dictionary(saved: str) -> None:
    state: dict[str, Any] = {}
    _load_state_dict(
        state,
        storage_reader=CheckpointStorageReader(saved),
        planner=_EmptyStateDictLoadPlanner(),
        no_dist=True,
    )
    net, reference = model(seed=1), channels_last(model())
    train(reference, plain(reference, "AdamW"), 0)
    net.load_state_dict(state["model"])
    close(weights(net), weights(reference))
    optimizer = adamw(net)
    set_state_dict(
        net,
        optimizer,
        model_state_dict={},
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(strict=False),
    )
    assert optimizer.param_groups[0]["lr"] == 0.125


def _saves_several(rank: int, size: int, path: str) -> None:
    nets = {"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)}
    both = [p for net in nets.values() for p in net.parameters()]
    optimizer = optim.SGD(both, lr=0.5, momentum=0.5)
    for net in nets.values():
        net(torch.ones(1, net.in_features)).sum().backward()
    optimizer.step()
    farandole.save_checkpoint(path, model=nets, optimizer={"o": optimizer})


def test_several_models_are_below_their_names(tmp_path: Path) -> None:
    ranks.run(_saves_several, 2, str(tmp_path))
    found = CheckpointStorageReader(tmp_path).read_metadata().state_dict_metadata
    assert {"a.weight", "b.bias", "o.param_groups.0.lr"} <= set(found)
    assert CheckpointStorageReader.validate_checkpoint_id(tmp_path)
    assert not CheckpointStorageReader.validate_checkpoint_id(tmp_path / "nothing")
    with pytest.raises(farandole.CheckpointError, match="no checkpoint"):
        CheckpointStorageReader(tmp_path / "nothing")
    state = {"a.weight": torch.zeros(2, 3)}
    dcp.load(
        state,
        checkpoint_id=str(tmp_path),
        storage_reader=CheckpointStorageReader(tmp_path),
        no_dist=True,
    )
    assert state["a.weight"].any()
