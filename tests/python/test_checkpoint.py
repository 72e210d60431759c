# SPDX-License-Identifier: Apache-2.0
"""farandole.save_checkpoint() and load_checkpoint()."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import CheckpointError, DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim import LAMB
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_by_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_by_dcp
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer

import ranks
import sim
import warm_python
from whole_optimizers import Shampoo

BATCH = 12  # of all ranks together; numbers that bfloat16 has, so that any sum has the same bits
STEPS = 3


class Net(nn.Module):
    """Tied weights, a buffer, a frozen layer, memory with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        image = self.conv(hidden.reshape(-1, 2, 2, 2))
        return self.head(hidden).sum() * 2**-6 + (image * self.scale).sum() * 2**-6


def model(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Net().to(dtype)


def names_in(path: str) -> list[str]:
    """Of a folder of checkpoints."""
    return sorted(each.name for each in Path(path).iterdir() if not each.name.startswith("."))


Make = Callable[[Any], optim.Optimizer]


def sharded(kind: Any, **options: Any) -> Make:
    return lambda parameters: ZeroRedundancyOptimizer(parameters, kind, **options)


def in_groups(net: Any, reverse: bool = False) -> list[dict[str, Any]]:
    """Two groups, in either order."""
    net = getattr(net, "module", net)
    decayed = [p for name, p in net.named_parameters() if name.startswith("conv")]
    others = [p for name, p in net.named_parameters() if not name.startswith("conv")]
    groups = [{"params": decayed, "weight_decay": 0.25}, {"params": others, "lr": 0.125}]
    return groups[::-1] if reverse else groups


OPTIMIZERS: dict[str, Make] = {
    "AdamW": sharded(optim.AdamW, lr=0.25),
    "SGD": sharded(optim.SGD, lr=0.25, momentum=0.5),
    "LAMB": sharded(LAMB, lr=0.25),
    "RMSprop": sharded(optim.RMSprop, lr=0.25, momentum=0.5),
    "Shampoo": sharded(Shampoo, lr=0.25),
}


def train(net: nn.Module, optimizer: optim.Optimizer, first: int, steps: int) -> None:
    """The same gradients on all ranks, so that their number does not matter."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        net(torch.randint(9, (BATCH,), generator=generator)).backward()
        optimizer.step()


def numbers(net: nn.Module) -> list[Any]:
    """As they travel between processes."""
    return [each.double().tolist() for each in weights(net)]


def weights(net: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in net.state_dict().values()]


def _saves(rank: int, size: int, path: str, name: str, dtype: torch.dtype) -> list[Any]:
    net = DistributedDataParallel(model(dtype))
    optimizer = OPTIMIZERS[name](in_groups(net))
    train(net, optimizer, 0, STEPS)
    saved = farandole.save_checkpoint(path, model=net, optimizer=optimizer, step=STEPS)
    assert saved.wait() == f"{path}/step-{STEPS:08d}"
    train(net, optimizer, STEPS, STEPS)
    return numbers(net.module)


def _loads(rank: int, size: int, path: str, name: str, dtype: torch.dtype) -> list[Any]:
    """With other buckets, and groups in another order."""
    net = DistributedDataParallel(model(dtype, seed=1), bucket_cap_mb=1e-4)
    optimizer = OPTIMIZERS[name](in_groups(net, reverse=True))
    assert farandole.load_checkpoint(path, model=net, optimizer=optimizer) == {}
    train(net, optimizer, STEPS, STEPS)
    return numbers(net.module)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for place, name in enumerate(OPTIMIZERS)
        for turn, dtype in enumerate([torch.float32, torch.bfloat16])
        if ranks.WHOLE_MATRIX or place % 2 == turn
    ],
)
def test_other_numbers_of_ranks_go_on_as_those_that_saved(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    path = str(tmp_path)
    expected = ranks.run(_saves, 4, path, name, dtype)[0]
    for size in (1, 2, 3, 4):
        for got in ranks.run(_loads, size, path, name, dtype):
            # Averages of three are rounded; norms of LAMB are added up in another order.
            if name != "LAMB" and size != 3:
                assert got == expected, size
                continue
            tolerance = 1e-1 if dtype == torch.bfloat16 else 1e-4
            for own, other in zip(got, expected, strict=True):
                pair = (torch.tensor(own), torch.tensor(other))
                torch.testing.assert_close(*pair, rtol=tolerance, atol=tolerance)


def _plain(rank: int, size: int, path: str, saves_sharded: bool) -> None:
    """From an optimizer of torch to a sharded one, and back."""
    kinds = [OPTIMIZERS["AdamW"], lambda groups: optim.AdamW(groups, lr=0.25)]
    first, second = kinds if saves_sharded else reversed(kinds)
    net = DistributedDataParallel(model())
    optimizer = first(in_groups(net))
    train(net, optimizer, 0, STEPS)
    farandole.save_checkpoint(path, model=net, optimizer=optimizer)
    other = DistributedDataParallel(model(seed=1))
    loaded = second(in_groups(other))
    farandole.load_checkpoint(path, model=other, optimizer=loaded)
    for each, of in ((net, optimizer), (other, loaded)):
        train(each, of, STEPS, STEPS)
    torch.testing.assert_close(weights(other.module), weights(net.module))


@pytest.mark.parametrize("saves_sharded", [True, False])
def test_states_go_between_sharded_and_unsharded_optimizers(
    saves_sharded: bool, tmp_path: Path
) -> None:
    ranks.run(_plain, 2, str(tmp_path), saves_sharded)


def _everything(rank: int, size: int, path: str) -> None:
    """Scheduler, scaler, sampler, generators and values come back."""
    net = DistributedDataParallel(model())
    optimizer = OPTIMIZERS["AdamW"](net.parameters())
    scheduler = optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
            optim.lr_scheduler.MultiStepLR(optimizer, [3, 5]),
        ],
        [2],
    )
    scaler = farandole.GradScaler(init_scale=2.0**7)
    for step in range(3):
        train(net, optimizer, step, 1)
        scheduler.step()
    values = {
        "epoch": 3,
        "loss": float("nan"),
        "shape": (1, (2, None)),
        "by number": {1: "one", (2, 3): {4}},
        "table": torch.arange(6).reshape(2, 3),
        "big": 2**70,
        "dtype": torch.bfloat16,
        "bytes": b"\x00\xff",
    }
    random.seed(rank)
    torch.manual_seed(rank + 7)
    parts = {"scheduler": scheduler, "scaler": scaler}
    farandole.save_checkpoint(path, model=net, optimizer=optimizer, values=values, **parts)
    drawn = [random.random(), torch.rand(3).tolist()]
    rates = []
    for _ in range(4):
        scheduler.step()
        rates.append(scheduler.get_last_lr())

    random.random(), torch.rand(5)
    scaler = farandole.GradScaler()
    parts["scaler"] = scaler
    got = farandole.load_checkpoint(path, model=net, optimizer=optimizer, **parts)
    assert [random.random(), torch.rand(3).tolist()] == drawn
    assert scaler.get_scale() == 2.0**7
    for expected in rates:
        scheduler.step()
        assert scheduler.get_last_lr() == expected
    assert got.pop("loss") != got.get("loss")
    assert torch.equal(got.pop("table"), values["table"])
    assert got == {key: value for key, value in values.items() if key not in ("loss", "table")}


def test_everything_comes_back(tmp_path: Path) -> None:
    ranks.run(_everything, 2, str(tmp_path))


def _asynchronous(rank: int, size: int, path: str) -> None:
    """Training goes on while a save is under way, and does not change it."""
    net = DistributedDataParallel(model())
    optimizer = OPTIMIZERS["AdamW"](in_groups(net))
    kept = []
    for save in range(4):
        train(net, optimizer, save, 1)
        kept.append(weights(net.module))
        pending = farandole.save_checkpoint(
            path, model=net, optimizer=optimizer, asynchronous=True, keep=2
        )
        train(net, optimizer, 10 + save, 1)
        for each, value in zip(net.module.state_dict().values(), kept[-1], strict=True):
            each.copy_(value)  # another batch has no effect on what comes next
    assert pending.wait() == f"{path}/save-{4:08d}"
    assert pending.is_done
    dist.barrier()
    assert names_in(path) == ["latest", "save-00000003", "save-00000004"]
    for folder, expected in (("save-00000003", kept[2]), ("", kept[3])):
        farandole.load_checkpoint(f"{path}/{folder}", model=net)
        assert all(torch.equal(a, b) for a, b in zip(weights(net.module), expected, strict=True))


def test_an_asynchronous_save_has_the_state_of_its_call(tmp_path: Path) -> None:
    ranks.run(_asynchronous, 3, str(tmp_path))


def _bad(rank: int, size: int, path: str, failing: str) -> None:
    """A load that fails changes nothing, on any rank."""
    net = DistributedDataParallel(model(seed=1))
    optimizer = OPTIMIZERS["AdamW"](in_groups(net))
    train(net, optimizer, 0, 1)
    before = weights(net.module)
    with pytest.raises(CheckpointError, match=failing) as raised:
        farandole.load_checkpoint(path, model=net, optimizer=optimizer)
    assert raised.value.args[0].count("\nfix: ") == 1
    assert all(torch.equal(a, b) for a, b in zip(weights(net.module), before, strict=True))
    train(net, optimizer, 1, 1)  # it goes on


def damage_header(folder: Path) -> None:
    file = folder / "rank-00001-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(bytes(data))


def damage_data(folder: Path) -> None:
    file = folder / "rank-00000-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))


def truncate(folder: Path) -> None:
    file = folder / "rank-00000-of-00002.safetensors"
    os.truncate(file, file.stat().st_size - 8)


def remove_file(folder: Path) -> None:
    (folder / "rank-00001-of-00002.safetensors").unlink()


def write_index(folder: Path, index: dict[str, Any]) -> None:
    """With the checksum that it must end with."""
    index.pop("crc32c")
    text = json.dumps(index)[:-1]
    crc = 0xFFFFFFFF
    for byte in text.encode():
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    (folder / "index.json").write_text(f'{text},"crc32c":{crc ^ 0xFFFFFFFF}}}\n')


def make_newer(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["format_version"] = 99
    write_index(folder, index)


def change_rate(folder: Path) -> None:
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text.replace("0.25", "0.35"))


def cut_index(folder: Path) -> None:
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text[: len(text) // 2])


def remove_index(folder: Path) -> None:
    (folder / "index.json").unlink()


def lose_rank(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    del index["files"][1]
    write_index(folder, index)


def make_foreign(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["values"] = "{}"
    write_index(folder, index)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit of a header": (damage_header, "checksum|damaged"),
    "a bit of a tensor": (damage_data, "checksum"),
    "truncated": (truncate, "bytes and had"),
    "a file is gone": (remove_file, "could not be opened"),
    "a newer format": (make_newer, "newer format"),
    "half of the index": (cut_index, "damaged"),
    "another learning rate": (change_rate, "checksum"),
    "of another program": (make_foreign, "could not be taken"),
    "no index": (remove_index, "there is no checkpoint"),
    "a file is not in the index": (lose_rank, "lacks a part"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    ranks.run(_saves, 2, str(path), "AdamW", torch.float32)
    return path / f"step-{STEPS:08d}"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoints_are_refused(damage: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    act, failing = DAMAGES[damage]
    act(folder)
    ranks.run(_bad, 2, str(folder), failing)


class Damaging:
    """Its state is loaded between the comparison of the files and the reading into place."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def state_dict(self) -> dict[str, Any]:
        return {"scale": 1.0}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        truncate(self._file.parent)


def _torn(rank: int, size: int, path: str) -> None:
    net = nn.Linear(512, 1024)  # files of several blocks, of which none is kept in memory
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    file = Path(path, "later", "step-00000001", "rank-00000-of-00002.safetensors")
    scaler = Damaging(file)
    farandole.save_checkpoint(
        file.parents[1], model=net, optimizer=optimizer, scaler=scaler, step=1
    )
    with pytest.raises(CheckpointError, match="was taken only in part on rank"):
        farandole.load_checkpoint(file.parents[1], model=net, optimizer=optimizer, scaler=scaler)
    dist.barrier()
    farandole.load_checkpoint(path, model=model())  # and the group goes on


def test_a_file_that_is_damaged_while_it_is_loaded_is_said(saved: Path) -> None:
    ranks.run(_torn, 2, str(saved))


class WithMore(Net):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.ones(1))


def _other_model(rank: int, size: int, path: str) -> None:
    for net, failing in (
        (nn.Linear(8, 9), r"nothing of that name"),
        (WithMore(), r"no tensor 'more'"),
        (model(torch.bfloat16), "with the dtype torch.float32"),
    ):
        with pytest.raises(CheckpointError, match=failing):
            farandole.load_checkpoint(path, model=net)
    wrong = model()
    wrong.conv = nn.Conv2d(2, 4, 1)
    with pytest.raises(CheckpointError, match=r"'conv.weight' with the shape \(4, 2, 3, 3\)"):
        farandole.load_checkpoint(path, model=wrong)
    net = model()
    with pytest.raises(CheckpointError, match="state of an optimizer AdamW"):
        farandole.load_checkpoint(path, model=net, optimizer=optim.SGD(net.parameters(), lr=1))
    with pytest.raises(CheckpointError, match="in different groups"):
        farandole.load_checkpoint(path, model=net, optimizer=optim.AdamW(net.parameters()))
    with pytest.raises(CheckpointError, match=r"no optimizer state of group\.0/parameter\.0"):
        farandole.load_checkpoint(path, optimizer=optim.AdamW(net.parameters()))
    apart = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    tied = nn.ModuleList([apart[0], nn.Linear(2, 2, bias=False)])
    tied[1].weight = tied[0].weight
    farandole.save_checkpoint(Path(path, "apart"), model=apart, step=1)
    with pytest.raises(CheckpointError, match=r"other values in '0.weight' than in '1.weight'"):
        farandole.load_checkpoint(Path(path, "apart"), model=tied)
    with torch.no_grad():
        apart[1].weight.copy_(apart[0].weight.fill_(torch.nan))
    farandole.save_checkpoint(Path(path, "apart"), model=apart, step=2)
    with torch.no_grad():
        apart[0].weight.zero_()
    farandole.load_checkpoint(Path(path, "apart"), model=tied)
    assert tied[1].weight.isnan().all()
    with pytest.raises(CheckpointError, match="no state of a scaler"):
        farandole.load_checkpoint(path, scaler=farandole.GradScaler())


def test_what_does_not_fit_is_named(saved: Path) -> None:
    ranks.run(_other_model, 2, str(saved))


def _refused(rank: int, size: int, path: str) -> None:
    net = model()
    overlapping = nn.Module()
    overlapping.register_buffer("all", torch.zeros(1).expand(4))
    with pytest.raises(farandole.InvalidArgument, match="'all', elements of which share"):
        farandole.save_checkpoint(path, model=overlapping)
    zero = TorchZeroRedundancyOptimizer(net.parameters(), optim.AdamW)
    with pytest.raises(farandole.InvalidArgument, match="torch's own ZeroRedundancyOptimizer"):
        farandole.save_checkpoint(path, optimizer=zero)
    with pytest.raises(farandole.InvalidArgument, match="other arguments or tensors on rank 1"):
        farandole.save_checkpoint(path, model=net, step=rank)
    with pytest.raises(farandole.Error, match="values/hook of the class function"):
        farandole.save_checkpoint(path, model=net, values={"hook": _refused})
    several: Any
    for several in (net.state_dict(), [net]):
        with pytest.raises(farandole.InvalidArgument, match="got model= with an object of the"):
            farandole.save_checkpoint(path, model=several)
    adam = optim.Adam(net.parameters())
    for several in (adam.state_dict(), [adam]):
        with pytest.raises(farandole.InvalidArgument, match="got optimizer= with an object of the"):
            farandole.save_checkpoint(path, optimizer=several)
    with pytest.raises(farandole.InvalidArgument, match=r"sampler=sampler\.state_dict\(consumed"):
        farandole.save_checkpoint(path, sampler=farandole.DistributedSampler(range(4)))
    with pytest.raises(farandole.InvalidArgument, match="got keep=0"):
        farandole.save_checkpoint(path, model=net, keep=0)
    # One rank alone cannot save.
    values = {"hook": object()} if rank == 1 else {}
    with pytest.raises(farandole.Error, match=r"failed on rank 1|class object"):
        farandole.save_checkpoint(path, model=net, values=values)
    farandole.save_checkpoint(path, model=net)
    assert names_in(path) == [
        "latest",
        "save-00000001",
    ]
    # Groups of the same ranks share the folder, and number their saves together.
    pending = farandole.save_checkpoint(path, model=net, process_group=dist.new_group())
    assert pending.wait().endswith("save-00000002")
    # Another job is refused.
    if rank == 0:
        job = subprocess.run(
            [sys.executable, "-c", OTHER_JOB, path], capture_output=True, text=True, env=ALONE
        )
        assert "another writer" in job.stdout, job.stdout + job.stderr
    dist.barrier()


OTHER_JOB = """
import sys
import farandole

farandole.init_process_group()
try:
    farandole.save_checkpoint(sys.argv[1], values={})
except farandole.CheckpointError as error:
    print(error)
"""
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ALONE = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}


@pytest.mark.system
def test_what_cannot_be_saved_is_refused_on_all_ranks(tmp_path: Path) -> None:
    ranks.run(_refused, 2, str(tmp_path))


def _full_disk(rank: int, size: int, path: str, asynchronous: bool) -> None:
    """Limits of the process stand for a full disk: writing fails in the middle of a file."""
    import resource

    net = DistributedDataParallel(model())
    farandole.save_checkpoint(path, model=net).wait()
    large = nn.Linear(3000, 300)
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    with pytest.raises(CheckpointError, match=r"could not be written|failed on rank 1"):
        farandole.save_checkpoint(path, model=large, asynchronous=asynchronous).wait()
    dist.barrier()
    assert names_in(path) == [
        "latest",
        "save-00000001",
    ]
    farandole.load_checkpoint(path, model=net)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_leaves_the_checkpoint_before(asynchronous: bool, tmp_path: Path) -> None:
    ranks.run(_full_disk, 2, str(tmp_path), asynchronous)


def _loaded(path: str, net: nn.Module) -> int:
    """The value of the latest checkpoint, which all elements have. Collective."""
    with torch.no_grad():
        for each in net.parameters():
            each.fill_(-1)
    value: int = farandole.load_checkpoint(path, model=net)["value"]
    assert all((each == value).all() for each in net.parameters())
    return value


def _saves_for_ever(path: str, net: nn.Module, value: int, asynchronous: bool) -> None:
    deadline = time.monotonic() + 20
    first = value
    while time.monotonic() < deadline:
        value += 1
        with torch.no_grad():
            for each in net.parameters():
                each.fill_(value)
        farandole.save_checkpoint(
            path, model=net, values={"value": value}, keep=2, asynchronous=asynchronous
        )
        if value == first + 2:
            Path(path, "..", "ready").touch()


def _kills(rank: int, size: int, path: str, least: int, after: float, victims: list[int]) -> None:
    """Ranks are killed a moment after they have saved twice; the others follow."""
    import threading

    net = nn.Linear(400, 300)
    value = _loaded(path, net) if least else 0
    assert value >= least
    dist.barrier()
    if rank in victims:

        def kill() -> None:
            ready = Path(path, "..", "ready")
            while not ready.exists():
                time.sleep(0.001)
            time.sleep(after)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
    try:
        _saves_for_ever(path, net, value, after > 0.01)
    except farandole.Error:
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody was killed")


@pytest.mark.parametrize("series", range(20 if ranks.WHOLE_MATRIX else 1))
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(series: int, tmp_path: Path) -> None:
    """Ten times in one folder: each training goes on from what the one before has left."""
    path = str(tmp_path / "saves")
    order = random.Random(series)
    setup = ranks.Setup(timeout_s=3)  # how long one that is left may wait
    for round_ in range(10):
        # Of the two values since the last one, the second may not have been saved yet.
        call = (path, round_, order.uniform(0, 0.03), order.choice([[0], [1], [0, 1], [0, 1]]))
        ranks.run(_kills, 2, *call, may_die=(0, 1), setup=setup)
        (tmp_path / "ready").unlink()
    ranks.run(_loads_value, 2, path, 10)


def _loads_value(rank: int, size: int, path: str, least: int) -> None:
    net = nn.Linear(400, 300)
    value = _loaded(path, net)
    assert value >= least
    farandole.save_checkpoint(path, model=net, values={"value": value}).wait()
    dist.barrier()
    assert not [each for each in names_in(path) if each.startswith("tmp-")]


@pytest.mark.parametrize("backend", sim.backends("lazy"))
def test_parameters_on_accelerators_are_saved(backend: str, tmp_path: Path) -> None:
    ranks.run(_on_device, 2, str(tmp_path), setup=ranks.Setup(backend=backend))


def _on_device(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(nn.Linear(300, 70))
    optimizer = OPTIMIZERS["AdamW"](net.parameters())
    for step in range(2):
        torch.manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(4, 300)).square().mean().backward()
        optimizer.step()
    farandole.save_checkpoint(path, model=net, optimizer=optimizer)
    other = DistributedDataParallel(nn.Linear(300, 70))
    again = OPTIMIZERS["AdamW"](other.parameters())
    farandole.load_checkpoint(path, model=other, optimizer=again)
    for each, of in ((net, optimizer), (other, again)):
        torch.manual_seed(9)
        of.zero_grad()
        each(torch.randn(4, 300)).square().mean().backward()
        of.step()
    pairs = zip(weights(other.module), weights(net.module), strict=True)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


@pytest.mark.system
def test_a_script_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    """That of docs/checkpoints.md."""
    script = Path(__file__).parents[2] / "examples/checkpoint/train.py"
    for size in (2, 3):
        done = subprocess.run(
            [
                *(warm_python.executable(), "-m", "torch.distributed.run", "--standalone"),
                *(f"--nproc-per-node={size}", str(script), str(tmp_path / "new")),
            ],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("from step 20") == size
    assert len(list((tmp_path / "new").glob("s*-*"))) == 4


@pytest.mark.system
def test_a_training_that_is_ended_three_times_ends_as_one_that_is_not(tmp_path: Path) -> None:
    script = Path(__file__).parent / "interrupted_training.py"
    ends = []
    step = 0
    for how in ("kill", "term", "kill"):
        step += random.randint(2, 7)
        ends.append(f"{step}:{how}")
    results = []
    for name, arguments in (("whole", []), ("interrupted", ends)):
        result = tmp_path / f"{name}.txt"
        done = subprocess.run(
            [
                *(warm_python.executable(), "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1"),
                *(str(script), str(tmp_path / name), str(result), *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, f"{ends}\n{done.stderr[-5000:]}"
        results.append(result.read_text())
    assert results[0] == results[1], ends


def test_the_safetensors_package_reads_it(saved: Path) -> None:
    parts: dict[str, dict[int, Tensor]] = {}
    for file in sorted(saved.glob("*.safetensors")):
        tensors = load_file(file)
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        described = json.loads(metadata["farandole"])["slices"]
        offsets = json.loads(metadata["DCP_SHARDING_INFO"])
        assert described.keys() == tensors.keys() == offsets.keys()
        for key, tensor in tensors.items():
            parts.setdefault(key, {})[described[key]["offset"]] = tensor.reshape(-1)
    assert {"conv.weight", "embed.weight", "conv.weight/exp_avg", "scale"} <= parts.keys()
    assert "head.weight" not in parts  # it is embed.weight
    joined = torch.cat([part for _, part in sorted(parts["embed.weight/exp_avg"].items())])
    assert joined.numel() == 72


def test_readers_of_torch_distributed_checkpoint_read_it(saved: Path) -> None:
    """What is cut is flat there, in the order of memory."""
    reader = farandole._C.CheckpointReader(str(saved))
    found = HuggingFaceStorageReader(str(saved)).read_metadata().state_dict_metadata
    assert found.keys() == reader.entries.keys()
    state = {
        key: torch.empty(each.size, dtype=each.properties.dtype) for key, each in found.items()
    }
    load_by_dcp(state, storage_reader=HuggingFaceStorageReader(str(saved)), no_dist=True)
    for key, value in state.items():
        own = reader.read(key, 0, value.numel())
        assert torch.equal(value.reshape(-1), own), key


def _differing(rank: int, size: int, path: str) -> None:
    net = nn.Linear(3 + rank, 2)
    with pytest.raises(farandole.InvalidArgument, match="other arguments or tensors on rank 1"):
        farandole.save_checkpoint(path, model=net)
    farandole.save_checkpoint(path, model=nn.Linear(3, 2))
    for number in range(7):  # each in a folder of its own
        farandole.save_checkpoint(f"{path}/{number}", model=nn.Linear(3, 2), asynchronous=True)
    assert farandole.resume_or_start(f"{path}/6") == {}
    assert farandole.resume_or_start(f"{path}/7") is None


def test_ranks_that_differ_are_named_and_folders_may_be_many(tmp_path: Path) -> None:
    ranks.run(_differing, 2, str(tmp_path))


class WithState(nn.Module):
    """What it saves is not its own tensors."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number
        self.weight = nn.Parameter(torch.full((2,), number))

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.number)

    def set_extra_state(self, state: Tensor) -> None:
        self.number = state.item()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight * 2

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        own = prefix + "weight"
        halved = {key: value / 2 if key == own else value for key, value in state.items()}
        super()._load_from_state_dict(halved, prefix, *others)


class Unwilling:
    """A scheduler of another training, on rank 1."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def state_dict(self) -> dict[str, Any]:
        return {"a": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.raises:
            raise ValueError("another length")


def _odd_parts(rank: int, size: int, path: str) -> None:
    net = nn.ModuleDict({"a": WithState(3.0), "b": WithState(5.0)})
    values = {"weight": {1: torch.ones(2), "1": torch.zeros(2)}, "set": {frozenset({1})}}
    farandole.save_checkpoint(
        path, model=net, scheduler=Unwilling(False), scaler=farandole.GradScaler(), values=values
    )
    other = nn.ModuleDict({"a": WithState(1.0), "b": WithState(1.0)})
    scaler = farandole.GradScaler(init_scale=4.0)
    with pytest.raises(CheckpointError, match="another length"):
        farandole.load_checkpoint(path, model=other, scaler=scaler, scheduler=Unwilling(rank == 1))
    assert other["a"].number == 1.0
    assert scaler.get_scale() == 4.0
    got = farandole.load_checkpoint(path, model=other, scaler=scaler)
    assert [each.number for each in other.values()] == [3.0, 5.0]
    assert [each.weight[0].item() for each in other.values()] == [3.0, 5.0]
    assert scaler.get_scale() == 2.0**16
    assert torch.equal(got["weight"][1], torch.ones(2))
    assert torch.equal(got["weight"]["1"], torch.zeros(2))
    assert got["set"] == {frozenset({1})}
    with pytest.raises(CheckpointError, match="nothing of that name"):
        farandole.load_checkpoint(path, model=nn.ModuleDict({"a": WithState(1.0)}))


def _wrapped(kind: str) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    torch.manual_seed(3)
    net: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    if kind == "compiled":
        net[0] = torch.compile(net[0])
    if kind == "recomputed":
        net[0], net[1] = checkpoint_wrapper(net[0]), checkpoint_wrapper(net[1])
    return net


def _wrapped_layers(rank: int, size: int, path: str) -> None:
    for saved in ("plain", "compiled", "recomputed"):
        net = _wrapped(saved)
        optimizer = optim.AdamW(net.parameters(), lr=0.1)
        for each in net.parameters():
            each.grad = torch.full_like(each, 0.5)
        optimizer.step()
        farandole.save_checkpoint(Path(path, saved), model=net, optimizer=optimizer)
        for loaded in ("plain", "compiled", "recomputed"):
            other = _wrapped(loaded)
            state = optim.AdamW(other.parameters(), lr=0.5)
            farandole.load_checkpoint(Path(path, saved), model=other, optimizer=state)
            for one, two in zip(net.parameters(), other.parameters(), strict=True):
                assert torch.equal(one, two)
                assert torch.equal(optimizer.state[one]["exp_avg"], state.state[two]["exp_avg"])
        of_torch = Path(path, f"{saved}-of-torch")
        of_model, of_optimizer = get_state_dict(net, optimizer)
        state = {"model": of_model, "optim": of_optimizer}
        save_by_dcp(state, checkpoint_id=of_torch, no_dist=True)
        raw = Path(path, f"{saved}-raw")
        save_by_dcp({"model": net.state_dict()}, checkpoint_id=raw, no_dist=True)
        for loaded in ("plain", "compiled", "recomputed"):
            other = _wrapped(loaded)
            state = optim.AdamW(other.parameters(), lr=0.5)
            farandole.load_checkpoint(of_torch, model=other, optimizer=state)
            for one, two in zip(net.parameters(), other.parameters(), strict=True):
                assert torch.equal(one, two)
                assert torch.equal(optimizer.state[one]["exp_avg"], state.state[two]["exp_avg"])
        farandole.load_checkpoint(raw, model=_wrapped(saved))
        half = _wrapped("recomputed").to(torch.bfloat16)
        before = [each.detach().clone() for each in half.parameters()]
        with pytest.raises(CheckpointError, match="with the dtype"):
            farandole.load_checkpoint(Path(path, saved), model=half)
        assert all(map(torch.equal, half.parameters(), before))


def test_wrapped_layers_have_the_names_of_plain_ones(tmp_path: Path) -> None:
    ranks.run(_wrapped_layers, 1, str(tmp_path))


def test_modules_load_what_they_have_made_for_it(tmp_path: Path) -> None:
    ranks.run(_odd_parts, 2, str(tmp_path / "with\na line"))
