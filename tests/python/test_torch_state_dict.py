# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint.state_dict and sharded optimizers."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed.checkpoint as dcp
from farandole import DistributedDataParallel, InvalidArgument, ZeroRedundancyOptimizer
from farandole.optim import LAMB, full_state
from farandole.optim.boxes import boxes_of
from farandole.optim.sharded_state import ShardedState
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import ranks
import sim
import warm_python
from test_checkpoint_of_torch import STEPS, close, model, train, weights
from whole_optimizers import Shampoo

CLASSES: dict[str, Any] = {
    "AdamW": optim.AdamW,
    "SGD": optim.SGD,
    "LAMB": LAMB,
    "RMSprop": optim.RMSprop,
    "Shampoo": Shampoo,
}
FUSED = ("AdamW", "SGD", "LAMB")
OPTIONS: dict[str, Any] = {name: {"lr": 0.0625} for name in CLASSES} | {
    "SGD": {"lr": 0.0625, "momentum": 0.5},
    "RMSprop": {"lr": 0.0625, "momentum": 0.5},
}


def in_groups(net: nn.Module) -> list[dict[str, Any]]:
    table = [p for name, p in net.named_parameters() if "table" in name]
    others = [p for name, p in net.named_parameters() if "table" not in name]
    return [{"params": table, "lr": 0.125}, {"params": others}]


def sharded(net: nn.Module, name: str) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(in_groups(net), CLASSES[name], **OPTIONS[name])


def plain(net: nn.Module, name: str) -> optim.Optimizer:
    return CLASSES[name](in_groups(net), **OPTIONS[name])


def channels_last(net: Any) -> Any:
    """One parameter whose memory has another order than its dimensions."""
    net.table.data = net.table.data.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return net


def end_of(name: str) -> list[list[float]]:
    net = channels_last(model())
    optimizer = plain(net, name)
    train(net, optimizer, 0)
    train(net, optimizer, STEPS)
    return weights(net)


def test_boxes_cover_intervals() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((), (7,), (3, 5), (2, 3, 4), (1, 4, 1, 3), (2, 2, 2, 2)):
        for order in (list(range(len(shape))), list(reversed(range(len(shape))))):
            back = [order.index(each) for each in range(len(shape))]
            whole = torch.arange(int(torch.Size(shape).numel()))
            whole = whole.view([shape[each] for each in order]).permute(back)
            flat = torch.arange(whole.numel())
            for _ in range(60):
                begin, end = sorted(torch.randint(whole.numel() + 1, (2,), generator=generator))
                found = boxes_of(shape, whole.stride(), int(begin), int(end))
                assert len(found) <= max(2 * len(shape) - 1, 1)
                elements = []
                for box in found:
                    at = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
                    assert torch.equal(box.view(flat[begin:end], int(begin)), whole[at])
                    elements += whole[at].reshape(-1).tolist()
                assert sorted(elements) == list(range(begin, end))


TOLERANCE = {"Shampoo": {"rtol": 1e-3, "atol": 1e-4}}
"""Its roots of matrices make more of the order in which three ranks' gradients are added."""


def _saves(rank: int, size: int, path: str, name: str, flattened: bool) -> None:
    full_state._MOST_INSIDE = 4  # so that small tensors stay on their rank, too
    net = DistributedDataParallel(channels_last(model()))
    optimizer = sharded(net.module, name)
    train(net, optimizer, 0)
    before = weights(net.module)
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    of_model, of_optimizer = get_state_dict(net, optimizer, options=options)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=path)
    assert weights(net.module) == before
    with pytest.raises(InvalidArgument, match=r"consolidate_state_dict\(\) was not called"):
        optimizer.state_dict()
    train(net, optimizer, STEPS)
    close(weights(net.module), end_of(name), **TOLERANCE.get(name, {}))


def load_by_torch(net: Any, optimizer: Any, path: str, flattened: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    of_model, of_optimizer = get_state_dict(net, optimizer, options=options)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        net,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=options,
    )


def _loads_sharded(rank: int, size: int, path: str, name: str, flattened: bool) -> None:
    full_state._MOST_INSIDE = 4
    net = DistributedDataParallel(channels_last(model(seed=1)))
    optimizer = sharded(net.module, name)
    if name not in FUSED:
        with pytest.raises(farandole.NotSupported, match="has not been stepped"):
            get_optimizer_state_dict(net, optimizer)
        train(net, optimizer, 0)
    gradients = [p.grad for p in net.parameters()]
    load_by_torch(net, optimizer, path, flattened)
    assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
    train(net, optimizer, STEPS)
    close(weights(net.module), end_of(name), **TOLERANCE.get(name, {}))


def _loads_plain(rank: int, size: int, path: str, name: str, flattened: bool) -> None:
    net = channels_last(model(seed=1))
    optimizer = plain(net, name)
    load_by_torch(net, optimizer, path, flattened)
    train(net, optimizer, STEPS)
    close(weights(net), end_of(name), **TOLERANCE.get(name, {}))


def _loads_ours(rank: int, size: int, path: str, name: str) -> None:
    net = DistributedDataParallel(channels_last(model(seed=1)))
    optimizer = sharded(net.module, name)
    farandole.load_checkpoint(path, model=net, optimizer=optimizer)
    train(net, optimizer, STEPS)
    close(weights(net.module), end_of(name), **TOLERANCE.get(name, {}))


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_shards_are_saved_and_loaded(name: str, flattened: bool, tmp_path: Path) -> None:
    if flattened and name == "Shampoo":
        pytest.skip("torch does not flatten lists in a state")
    path = str(tmp_path / "saved")
    ranks.run(_saves, 3, path, name, flattened)
    ranks.run(_loads_plain, 2, path, name, flattened)
    for size in (1, 2, 4):
        ranks.run(_loads_sharded, size, path, name, flattened)
    ranks.run(_loads_ours, 2, path, name)


def equal(a: Any, b: Any) -> None:
    """The same nested values."""
    if isinstance(a, torch.Tensor):
        assert type(a) is torch.Tensor
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)  # averages of three are rounded
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    else:
        assert a == b


def _whole_states(rank: int, size: int, name: str) -> None:
    net = DistributedDataParallel(model())
    optimizer = sharded(net.module, name)
    train(net, optimizer, 0)
    reference = model()
    plain_optimizer = plain(reference, name)
    train(reference, plain_optimizer, 0)
    for flattened in (False, True):
        if flattened and name == "Shampoo":
            continue
        flat: dict[str, Any] = {"flatten_optimizer_state_dict": flattened}
        expected = get_optimizer_state_dict(
            reference, plain_optimizer, options=StateDictOptions(**flat)
        )
        on_all = StateDictOptions(full_state_dict=True, **flat)
        got = get_optimizer_state_dict(net, optimizer, options=on_all)
        equal(got, expected)
        on_one = StateDictOptions(full_state_dict=True, cpu_offload=True, **flat)
        on_rank_0 = get_optimizer_state_dict(net, optimizer, options=on_one)
        if rank == 0:
            equal(on_rank_0, expected)
        else:
            assert not on_rank_0.get("state")
        offloaded = StateDictOptions(cpu_offload=True, **flat)
        kept = get_optimizer_state_dict(net, optimizer, options=offloaded)
        assert kept.keys() == got.keys()

        if flattened:  # torch's own optimizers cannot be set from a flattened whole state, too
            continue
        for from_rank_0 in (False, True):
            other = DistributedDataParallel(model(seed=1))
            fresh = sharded(other.module, name)
            options = StateDictOptions(
                full_state_dict=True, broadcast_from_rank0=from_rank_0, **flat
            )
            state = got if not from_rank_0 or rank == 0 else {}
            set_model_state_dict(other, get_model_state_dict(net))
            if name not in FUSED:
                with pytest.raises(farandole.NotSupported, match="has not been stepped"):
                    set_optimizer_state_dict(other, fresh, state, options=options)
                continue
            set_optimizer_state_dict(other, fresh, state, options=options)
            train(other, fresh, STEPS)
            close(weights(other.module), end_without_order(name))


def end_without_order(name: str) -> list[list[float]]:
    net = model()
    optimizer = plain(net, name)
    train(net, optimizer, 0)
    train(net, optimizer, STEPS)
    return weights(net)


@pytest.mark.parametrize("name", CLASSES)
def test_whole_states_are_those_of_one_process(name: str) -> None:
    ranks.run(_whole_states, 3, name)


def _shown(rank: int, size: int) -> None:
    net = DistributedDataParallel(model())
    optimizer = sharded(net.module, "AdamW")
    assert optimizer.state  # or torch would make a step
    assert all(int(each["step"]) == 0 for each in optimizer.state.values())
    train(net, optimizer, 0)
    elements = 0
    for parameter, state in optimizer.state.items():
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
        assert int(state["step"]) == STEPS
        assert isinstance(state["exp_avg"], ShardedState)
        assert state["exp_avg"].shape == parameter.shape
        assert "elements" in repr(state["exp_avg"])
        elements += sum(part.numel() for _, part in state["exp_avg"].pieces)
    total = sum(p.numel() for p in net.parameters())
    assert elements <= -(-total // size) + 16 * len(list(net.parameters()))
    for parameter, moved in optimizer.state.items():  # as Lightning does
        optimizer.state[parameter] = {key: each.to("cpu") for key, each in moved.items()}
    train(net, optimizer, STEPS)
    close(weights(net.module), end_without_order("AdamW"))
    with pytest.raises(InvalidArgument, match="was called with a ShardedState"):
        state["exp_avg"] + 1
    with pytest.raises(InvalidArgument, match="was set"):
        optimizer.state = {}
    copied = copy.deepcopy(state["exp_avg"])
    assert isinstance(copied, ShardedState)
    assert copied.half().dtype == torch.float16
    for (begin, part), (other_begin, other) in zip(
        copied.pieces, state["exp_avg"].pieces, strict=True
    ):
        assert begin == other_begin
        assert torch.equal(part, other)
        assert part.data_ptr() != other.data_ptr()

    kept = get_optimizer_state_dict(net, optimizer)
    other = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.0625)
    with pytest.raises(ValueError, match="groups of"):
        other.load_state_dict(kept)


def test_each_rank_shows_what_it_has() -> None:
    ranks.run(_shown, 3)


@pytest.mark.system
def test_the_program_of_the_page_runs_on_two_ranks(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples/checkpoint/with_torch.py"
    done = subprocess.run(
        [
            *(warm_python.executable(), "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(script), str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("loaded") == 2


def _stale(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model())
    optimizer = sharded(net.module, "AdamW")
    train(net, optimizer, 0)
    kept = get_optimizer_state_dict(net, optimizer)
    net_2 = DistributedDataParallel(model())
    pair = torch.distributed.new_group([0, 1])
    if rank < 2:  # which have other shards of the same parameters there
        of_two = ZeroRedundancyOptimizer(
            in_groups(net_2.module), optim.AdamW, process_group=pair, lr=0.0625
        )
        with pytest.raises(InvalidArgument, match="without the elements"):
            of_two.load_state_dict(kept)
        assert all(int(each["step"]) == 0 for each in of_two.state.values())
    fresh = sharded(net_2.module, "RMSprop")
    flattened = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(net, optimizer, options=flattened)
    with pytest.raises(farandole.NotSupported, match="has not been stepped"):
        set_optimizer_state_dict(net_2, fresh, state, options=flattened)


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    ranks.run(_stale, 4, str(tmp_path))


def _halves(rank: int, size: int, path: str) -> None:
    def make(seed: int) -> tuple[Any, ZeroRedundancyOptimizer]:
        net = DistributedDataParallel(model(seed).bfloat16())
        return net, sharded(net.module, "AdamW")

    def steps(net: Any, optimizer: Any, first: int) -> None:
        for step in range(first, first + STEPS):
            generator = torch.Generator().manual_seed(step)
            optimizer.zero_grad()
            net(torch.randn(6, 5, generator=generator).bfloat16()).backward()
            optimizer.step()

    net, optimizer = make(0)
    steps(net, optimizer, 0)
    of_model, of_optimizer = get_state_dict(net, optimizer)
    assert all("master_parameter" in each for each in of_optimizer["state"].values())
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=path)
    other, fresh = make(1)
    of_model, of_optimizer = get_state_dict(other, fresh)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    third, loaded = make(2)
    farandole.load_checkpoint(path, model=third, optimizer=loaded)
    for each, of in ((net, optimizer), (other, fresh), (third, loaded)):
        steps(each, of, STEPS)
    assert weights(net.module) == weights(other.module) == weights(third.module)


def test_master_weights_come_back(tmp_path: Path) -> None:
    ranks.run(_halves, 2, str(tmp_path / "saved"))


def _fresh(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model())
    optimizer = sharded(net.module, "AdamW")
    dcp.save({"optimizer": get_optimizer_state_dict(net, optimizer)}, checkpoint_id=path)
    optimizer.consolidate_state_dict()  # of nothing, which must not begin a step
    state = {"optimizer": get_optimizer_state_dict(net, optimizer)}
    if rank == 0:
        assert optimizer.state_dict()["state"] == {}
    dcp.load(state, checkpoint_id=path)
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    assert all(p.grad is None or not p.grad.any() for p in net.parameters())
    train(net, optimizer, 0)
    train(net, optimizer, STEPS)
    close(weights(net.module), end_without_order("AdamW"))


def test_what_has_not_been_stepped_is_saved_and_loaded(tmp_path: Path) -> None:
    ranks.run(_fresh, 2, str(tmp_path / "saved"))


class SignDescent(optim.Optimizer):
    """Has no state."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign(), alpha=group["lr"])


def _without_elements(rank: int, size: int, path: str) -> None:
    net = nn.Linear(3, 3)
    net.register_parameter("none", nn.Parameter(torch.empty(0, 3)))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optim.Adam)
    for each in net.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    state = {"optimizer": get_optimizer_state_dict(net, optimizer)}
    dcp.save(state, checkpoint_id=path)
    dcp.load(state, checkpoint_id=path)
    set_optimizer_state_dict(net, optimizer, state["optimizer"])


def test_a_parameter_without_elements_has_a_state(tmp_path: Path) -> None:
    ranks.run(_without_elements, 2, str(tmp_path))


def _stateless(rank: int, size: int) -> None:
    for kind, options in ((SignDescent, {"element_wise": True}), (optim.SGD, {})):
        net = DistributedDataParallel(model())
        optimizer = ZeroRedundancyOptimizer(net.parameters(), kind, lr=0.0625, **options)
        train(net, optimizer, 0)
        before = weights(net.module)
        assert optimizer.state
        state = get_optimizer_state_dict(net, optimizer)
        assert state["state"] == {}
        set_optimizer_state_dict(net, optimizer, state)
        assert weights(net.module) == before


def test_optimizers_without_state_are_not_stepped() -> None:
    ranks.run(_stateless, 2)


def _asynchronous(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model())
    optimizer = sharded(net.module, "AdamW")
    train(net, optimizer, 0)
    group = torch.distributed.new_group(backend="gloo")
    state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)}
    saving = dcp.async_save(state, checkpoint_id=path, process_group=group)
    train(net, optimizer, STEPS)
    saving.result()
    other = DistributedDataParallel(model(seed=1))
    fresh = sharded(other.module, "AdamW")
    farandole.load_checkpoint(path, model=other, optimizer=fresh)
    train(other, fresh, STEPS)
    close(weights(other.module), weights(net.module))


def test_an_asynchronous_save_of_torch_has_the_state_of_its_call(tmp_path: Path) -> None:
    ranks.run(_asynchronous, 2, str(tmp_path / "saved"))


def _on_hosts(rank: int, size: int, path: str) -> None:
    """Each host has all shards: who saves is one of them."""
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(
        in_groups(net.module), optim.AdamW, shard_over="host", **OPTIONS["AdamW"]
    )
    train(net, optimizer, 0)
    of_model, of_optimizer = get_state_dict(net, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=path)
    on_one = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_optimizer_state_dict(net, optimizer, options=on_one)
    reference = model()
    plain_optimizer = plain(reference, "AdamW")
    train(reference, plain_optimizer, 0)
    if rank == 0:
        equal(whole, get_optimizer_state_dict(reference, plain_optimizer))


def test_hosts_that_have_all_shards_save_them_once(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    ranks.run(_on_hosts, 4, path, setup=ranks.Setup(backend="hosts"))
    ranks.run(_loads_sharded_flat, 2, path)


def _loads_sharded_flat(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(model(seed=1))
    optimizer = sharded(net.module, "AdamW")
    farandole.load_checkpoint(path, model=net, optimizer=optimizer)
    train(net, optimizer, STEPS)
    close(weights(net.module), end_without_order("AdamW"))


@pytest.mark.parametrize("backend", sim.backends("lazy"))
def test_states_on_accelerators_are_saved_and_loaded(backend: str, tmp_path: Path) -> None:
    ranks.run(_on_device, 2, str(tmp_path / "saved"), setup=ranks.Setup(backend=backend))


def _on_device(rank: int, size: int, path: str) -> None:
    net = DistributedDataParallel(nn.Linear(300, 70))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.0625)
    other = DistributedDataParallel(nn.Linear(300, 70))
    again = ZeroRedundancyOptimizer(other.parameters(), optim.AdamW, lr=0.0625)

    def step(net: Any, optimizer: Any, seed: int) -> None:
        torch.manual_seed(seed)
        optimizer.zero_grad()
        net(torch.randn(4, 300)).square().mean().backward()
        optimizer.step()

    step(net, optimizer, 0)
    for offloads in (False, True):
        options = StateDictOptions(cpu_offload=offloads)
        of_model, of_optimizer = get_state_dict(net, optimizer, options=options)
        saved = f"{path}/{offloads}"
        dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=saved)
        of_model, of_optimizer = get_state_dict(other, again)
        state = {"model": of_model, "optimizer": of_optimizer}
        dcp.load(state, checkpoint_id=saved)
        set_state_dict(
            other, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        step(net, optimizer, 9)
        step(other, again, 9)
        pairs = zip(other.parameters(), net.parameters(), strict=True)
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)
