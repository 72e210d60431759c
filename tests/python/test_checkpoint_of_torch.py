# SPDX-License-Identifier: Apache-2.0
"""farandole.load_checkpoint() of what torch.distributed.checkpoint has written."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed.checkpoint as dcp
from farandole import CheckpointError, DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.checkpoint.dcp_folder import DcpFolder
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer

import ranks
from saved_by_torch import save_alone

STEPS = 3
GLOO = ranks.Setup(backend="gloo")


class Net(nn.Module):
    """Sizes that no number of ranks divides, a buffer, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5, bias=False))
        self.table = nn.Parameter(torch.arange(30.0).reshape(2, 3, 5) * 2**-6)
        self.last = nn.Linear(7, 5, bias=False)
        self.last.weight = self.first[2].weight
        self.register_buffer("scale", torch.tensor([2.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) @ self.table.sum(0).t()
        return (hidden * self.scale.sum()).square().mean() + self.last.weight.square().mean()


def model(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def train(net: nn.Module, optimizer: optim.Optimizer, first: int) -> None:
    """The same on all ranks."""
    for step in range(first, first + STEPS):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(6, 5, generator=generator)).backward()
        optimizer.step()


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    table = [p for name, p in net.named_parameters() if "table" in name]
    others = [p for name, p in net.named_parameters() if "table" not in name]
    return [{"params": table, "lr": 0.125}, {"params": others}]


def adamw(net: nn.Module) -> optim.Optimizer:
    return optim.AdamW(groups_of(net), lr=0.0625, weight_decay=0.25)


def weights(net: nn.Module) -> list[list[float]]:
    return [each.detach().reshape(-1).tolist() for each in net.state_dict().values()]


def close(got: list[list[float]], expected: list[list[float]], **tolerance: float) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), **tolerance)


def expected_end() -> list[list[float]]:
    net = model()
    optimizer = adamw(net)
    train(net, optimizer, 0)
    train(net, optimizer, STEPS)
    return weights(net)


def _state(form: str, net: Any, optimizer: optim.Optimizer) -> dict[str, Any]:
    """As programs give it to dcp.save()."""
    flattened = StateDictOptions(flatten_optimizer_state_dict=True)
    if form == "names":
        of_model, of_optimizer = get_state_dict(net, optimizer)
        return {"model": of_model, "optimizer": of_optimizer, "epoch": 4}
    if form == "flattened":
        of_optimizer = get_optimizer_state_dict(net, optimizer, options=flattened)
        return {"app": {"model": get_model_state_dict(net), "optim": of_optimizer}, "epoch": 4}
    if form == "numbers":
        return {"model": net.state_dict(), "optim": optimizer.state_dict(), "epoch": 4}
    assert form == "flat"  # with values whose names begin as those of tensors
    of_optimizer = get_optimizer_state_dict(net, optimizer, options=flattened)
    return {**get_model_state_dict(net), **of_optimizer, "epoch": 4, "scale_of": 2.0}


def _saves(rank: int, size: int, path: str, form: str) -> None:
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = adamw(net)
    train(net, optimizer, 0)
    dcp.save(_state(form, net, optimizer), checkpoint_id=path)


def _loads(rank: int, size: int, path: str, sharded: bool) -> list[list[float]]:
    net = DistributedDataParallel(model(seed=1))
    optimizer = (
        ZeroRedundancyOptimizer(groups_of(net), optim.AdamW, lr=0.5) if sharded else adamw(net)
    )
    values = farandole.resume_or_start(path, model=net, optimizer=optimizer)
    assert values in ({"epoch": 4}, {"epoch": 4, "scale_of": 2.0}), values
    train(net, optimizer, STEPS)
    return weights(net.module)


@pytest.mark.parametrize("form", ["names", "flattened", "numbers", "flat"])
def test_training_goes_on_from_what_torch_has_saved(form: str, tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    ranks.run(_saves, 2, path, form, setup=GLOO)
    expected = expected_end()
    for size, sharded in ((1, True), (2, False), (3, True)):
        for got in ranks.run(_loads, size, path, sharded):
            close(got, expected)


def _saves_fully_sharded(rank: int, size: int, path: str) -> None:
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
    optimizer = adamw(net)
    train(net, optimizer, 0)
    dcp.save(_state("names", net, optimizer), checkpoint_id=path)


def test_chunks_of_fully_sharded_models_are_put_together(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    ranks.run(_saves_fully_sharded, 3, path, setup=GLOO)
    expected = expected_end()
    for size in (1, 2, 4):
        for got in ranks.run(_loads, size, path, True):
            close(got, expected)


def _counts_reads(rank: int, size: int, path: str) -> None:
    """Of the optimizer's state each rank reads the chunks alone that its shards meet."""
    read: list[Any] = []
    load = DcpFolder._load

    def counting(self: DcpFolder, index: Any, key: str) -> Any:
        read.append((key, tuple(index.offset or ())))
        return load(self, index, key)

    DcpFolder._load = counting  # type: ignore[method-assign]
    net = DistributedDataParallel(nn.Linear(60, 80, bias=False))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.5)
    farandole.load_checkpoint(path, model=net, optimizer=optimizer)
    assert len(read) == len(set(read)), read
    of_state = [offsets for key, offsets in read if key == "optimizer.state.weight.exp_avg"]
    assert 1 <= len(of_state) <= 2
    assert len([key for key, _ in read if key == "model.weight"]) == 4


def _saves_rows(rank: int, size: int, path: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(60, 80, bias=False)
    fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
    optimizer = optim.AdamW(net.parameters())
    net(torch.randn(3, 60)).square().mean().backward()
    optimizer.step()
    of_model, of_optimizer = get_state_dict(net, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=path)


def test_ranks_read_the_chunks_that_they_need(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    ranks.run(_saves_rows, 4, path, setup=GLOO)
    ranks.run(_counts_reads, 4, path)


def _saves_torchs_zero(rank: int, size: int, path: str) -> None:
    net = nn.parallel.DistributedDataParallel(model())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = TorchZeroRedundancyOptimizer(
            groups_of(net)[0]["params"], optim.AdamW, lr=0.125, weight_decay=0.25
        )
        optimizer.add_param_group({**groups_of(net)[1], "lr": 0.0625})
        train(net, optimizer, 0)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        dcp.save(_state("numbers", net, optimizer), checkpoint_id=path, no_dist=True)


def test_what_torchs_zero_has_consolidated_is_loaded(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    ranks.run(_saves_torchs_zero, 2, path, setup=GLOO)
    expected = expected_end()
    for got in ranks.run(_loads, 3, path, True):
        close(got, expected)


def trained() -> tuple[Net, optim.Optimizer]:
    net = model()
    optimizer = adamw(net)
    train(net, optimizer, 0)
    return net, optimizer


def _several(rank: int, size: int, path: str) -> None:
    """Two models of the same names, and what else programs save."""
    net = DistributedDataParallel(model(seed=1))
    with pytest.raises(CheckpointError, match="several times: below 'live', 'ema'"):
        farandole.load_checkpoint(path, model=net)
    optimizer = ZeroRedundancyOptimizer(groups_of(net), optim.AdamW, lr=0.5)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2)
    net_before = weights(net.module)
    for given, wrong in (
        ({"model": {"student": net}}, "has no tensor 'student.table' of the model"),
        ({"optimizer": {"student": optimizer}}, "has no optimizer below the name 'student'"),
        ({"model": nn.Linear(3, 4)}, "top-level names are 'live', 'ema'"),
        ({"model": {"live": net}, "scaler": farandole.GradScaler()}, "no state of a scaler"),
        (
            {
                "model": {"live": net},
                "optimizer": {"live.o": ZeroRedundancyOptimizer(groups_of(net), optim.SGD, lr=1)},
            },
            "whose 'momentum' is not there",
        ),
    ):
        with pytest.raises(CheckpointError, match=wrong):
            farandole.load_checkpoint(path, **given)
    assert weights(net.module) == net_before
    values = farandole.load_checkpoint(
        path, model={"ema": net}, optimizer={"live.o": optimizer}, scheduler=scheduler
    )
    assert values.keys() == {"note", "seen"}
    assert values["note"] == ["a", (1, 2.5)]
    assert values["seen"].tolist() == [3, 4]
    assert scheduler.last_epoch == 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0125)
    assert weights(net.module) == weights(model(seed=7))
    (state,) = [each for each in optimizer.owned_states() if each.group == 0][:1]
    assert int(state.rest["step"]) == STEPS


def test_several_models_are_told_apart_by_the_names_that_the_program_gives(tmp_path: Path) -> None:
    net, optimizer = trained()
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step came before
        for _ in range(2):
            scheduler.step()
    of_optimizer = get_optimizer_state_dict(net, optimizer)
    state = {
        "live": net.state_dict() | {"o": of_optimizer},
        "ema": model(seed=7).state_dict(),
        "scheduler": scheduler.state_dict(),
        "note": ["a", (1, 2.5)],
        "seen": torch.tensor([3, 4]),
    }
    ranks.run(_several, 2, save_alone(tmp_path / "saved", state))


class Foreign:
    """Code that loading must not run."""


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran-code"),))


def add_evil_metadata(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))


def cut_metadata(folder: Path) -> None:
    data = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(data[: len(data) // 2])


def remove_data(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()


def cut_data(folder: Path) -> None:
    data = (folder / "__0_0.distcp").read_bytes()
    (folder / "__0_0.distcp").write_bytes(data[: len(data) // 2])


def edit_metadata(folder: Path, change: Any) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def lose_chunks(folder: Path) -> None:
    edit_metadata(folder, lambda each: each.state_dict_metadata["model.table"].chunks.clear())


def lead_outside(folder: Path) -> None:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "../" + info.relative_path

    edit_metadata(folder, change)


def compress(folder: Path) -> None:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = ["zstd"]

    edit_metadata(folder, change)


def lose_dtype(folder: Path) -> None:
    def change(metadata: Any) -> None:
        metadata.state_dict_metadata["model.table"].properties.dtype = "float32"

    edit_metadata(folder, change)


def lose_chunk_size(folder: Path) -> None:
    def change(metadata: Any) -> None:
        del metadata.state_dict_metadata["model.table"].chunks[0].sizes

    edit_metadata(folder, change)


def lose_descriptions(folder: Path) -> None:
    edit_metadata(folder, lambda each: delattr(each, "state_dict_metadata"))


def lose_length(folder: Path) -> None:
    def change(metadata: Any) -> None:
        next(iter(metadata.storage_data.values())).length = None

    edit_metadata(folder, change)


def misname_group(folder: Path) -> None:
    def change(metadata: Any) -> None:
        described = metadata.state_dict_metadata
        described["optimizer.param_groups.1x.lr"] = described.pop("optimizer.param_groups.1.lr")

    edit_metadata(folder, change)


def claim_memory(folder: Path) -> None:
    """640 MB for the unpickler's memo, by a file of eleven bytes."""
    (folder / ".metadata").write_bytes(b"\x80\x02Nr" + (80_000_000).to_bytes(4, "little") + b"0N.")


def claim_memory_in_decimals(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"Np80000000\n0N.")


def nest_keys(folder: Path) -> None:
    """A key whose text would take 2 GiB."""
    nested = pickle.dumps("k" * 64)[:-1] + b"2\x86" * 25 + b"."

    def change(metadata: Any) -> None:
        metadata.state_dict_metadata[pickle.loads(nested)] = None

    edit_metadata(folder, change)


DAMAGES = {
    claim_memory: "it puts object 80000000",
    claim_memory_in_decimals: "it puts object 80000000",
    nest_keys: "no description of a key that is a tuple",
    add_evil_metadata: "UnpicklingError: it names",
    cut_metadata: "could not be read",
    remove_data: "FileNotFoundError",
    cut_data: "could not be read",
    lose_chunks: "its chunks have 0 of 30 elements",
    lose_dtype: "no description of 'model.table'",
    lose_chunk_size: "no description of 'model.table'",
    lose_descriptions: "no Metadata of FileSystemWriter",
    lose_length: "does not say where",
    misname_group: "'1x' is none",
    lead_outside: "outside of the folder",
    compress: "it is stored as",
}


def _damaged(rank: int, size: int, path: str, wrong: str) -> None:
    net = DistributedDataParallel(model(seed=1))
    optimizer = ZeroRedundancyOptimizer(groups_of(net), optim.AdamW, lr=0.5)
    before = weights(net.module)
    for load in (farandole.load_checkpoint, farandole.resume_or_start):
        with pytest.raises(CheckpointError, match=wrong):
            load(path, model=net, optimizer=optimizer)
    assert weights(net.module) == before
    assert optimizer.param_groups[1]["lr"] == 0.5
    assert not Path("ran-code").exists()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_folders_are_refused(damage: Any, tmp_path: Path) -> None:
    path = save_alone(tmp_path / "saved", _state("names", *trained()))
    damage(tmp_path / "saved")
    ranks.run(_damaged, 2, path, DAMAGES[damage])


def _odd(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model(seed=1))
    values = farandole.load_checkpoint(path, model=net)
    assert values == {"epoch": 4}
    close(weights(net.module), weights(trained()[0]))
    other = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.5)  # one group, not two
    with pytest.raises(CheckpointError, match="different groups"):
        farandole.load_checkpoint(path, model=net, optimizer=other)
    farandole.save_checkpoint(path, model=net, values={"epoch": 5})
    assert farandole.load_checkpoint(path, model=net) == {"epoch": 5}


def test_what_no_plain_value_is_stays_out_and_our_saves_come_first(tmp_path: Path) -> None:
    state = _state("names", *trained()) | {"foreign": Foreign()}
    ranks.run(_odd, 2, save_alone(tmp_path / "saved", state))


def _by_number(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model(seed=1))
    other = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.5)
    with pytest.raises(CheckpointError, match=r"groups of \[1, 3\] parameters"):
        farandole.load_checkpoint(path, model=net, optimizer=other)


def test_numbers_of_parameters_need_the_same_groups(tmp_path: Path) -> None:
    ranks.run(_by_number, 2, save_alone(tmp_path / "saved", _state("numbers", *trained())))


def test_a_folder_without_metadata_is_no_checkpoint(tmp_path: Path) -> None:
    path = save_alone(tmp_path / "saved", {"model": model().state_dict()})
    shutil.move(tmp_path / "saved" / ".metadata", tmp_path / "saved" / ".metadata.tmp")
    assert ranks.run(_starts, 2, path) == [None, None]


def _starts(rank: int, size: int, path: str) -> Any:
    return farandole.resume_or_start(path, model=model())
