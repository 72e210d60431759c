# SPDX-License-Identifier: Apache-2.0
"""farandole.GradScaler does what torch's does, and all ranks agree on it."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, GradScaler, ZeroRedundancyOptimizer
from torch import Tensor, nn
from torch.amp import GradScaler as TorchGradScaler

import ranks
from zero_oracle import (
    DEVICES,
    Bowl,
    Trial,
    assert_same_everywhere,
    average_gradients,
    check_parameters,
    loss,
    needs_devices,
)

Scaler = GradScaler | TorchGradScaler


def parameter(gradient: float | Tensor, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    value = torch.as_tensor(gradient, dtype=dtype)
    made = nn.Parameter(torch.ones(value.shape, dtype=dtype))
    made.grad = value.clone()
    return made


def sgd(*parameters: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def started(**options: Any) -> GradScaler:
    scaler = GradScaler(**options)
    scaler.scale(torch.ones(()))
    return scaler


# The scale, on one rank.


@pytest.mark.parametrize(
    ("init_scale", "growth_factor", "backoff_factor", "interval", "share_of_inf"),
    [
        (65536.0, 2.0, 0.5, 3, 0.2),
        (1000.0, 1.7, 0.3, 7, 0.1),
        (2.0**120, 3.0, 0.9, 1, 0.01),  # up to what float32 holds, and not beyond
        (1e-30, 2.0, 0.1, 5, 0.9),  # down to where 1 / scale is Inf, and steps are left out here
    ],
)
def test_the_scale_moves_as_torchs(
    init_scale: float,
    growth_factor: float,
    backoff_factor: float,
    interval: int,
    share_of_inf: float,
) -> None:
    numbers = random.Random(0)
    options = (init_scale, growth_factor, backoff_factor, interval)
    scalers = [GradScaler("cpu", *options), TorchGradScaler("cpu", *options)]
    for scaler in scalers:
        scaler.scale(torch.ones(()))
    weight = parameter(1.0)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    seen = set()
    for _ in range(5000):
        value = math.inf if numbers.random() < share_of_inf else 1.0
        states = []
        for scaler in scalers:
            weight.grad = torch.tensor(value)
            scaler.step(optimizer)
            scaler.update()
            states.append(scaler.state_dict())
        assert states[0] == states[1]
        if states[0]["scale"] < 1e-37:
            for scaler in scalers:
                scaler.update(1.0)
        seen.add(states[0]["scale"])
    assert len(seen) > 10


def test_update_sets_the_scale() -> None:
    scaler = started()
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0
    scaler.update(torch.tensor([0.5]))
    assert scaler.get_scale() == 0.5
    scaler.set_growth_factor(3.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(17)
    numbers = scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()
    assert numbers == (3.0, 0.25, 17)


def test_scale_takes_what_torchs_takes() -> None:
    scaler = GradScaler(init_scale=4.0)
    one = torch.ones(2, requires_grad=True)
    assert torch.equal(scaler.scale(one), torch.full((2,), 4.0))
    nested = scaler.scale([one, (one, [one])])
    assert isinstance(nested, list)
    assert isinstance(nested[1], tuple)
    assert torch.equal(nested[1][1][0], torch.full((2,), 4.0))
    assert [float(each.detach()[0]) for each in scaler.scale(x for x in [one])] == [4.0]
    half = scaler.scale(torch.ones(1, dtype=torch.float16))
    assert half.dtype == torch.float16
    scaler.scale(one).sum().backward()
    assert torch.equal(one.grad, torch.full((2,), 4.0))


def test_state_moves_between_torchs_and_ours() -> None:
    ours, torchs = started(init_scale=128.0, growth_interval=5), TorchGradScaler("cpu")
    weight = parameter(1.0)
    ours.step(sgd(weight))
    ours.update()
    torchs.load_state_dict(ours.state_dict())
    assert torchs.state_dict() == ours.state_dict()
    back = GradScaler()
    back.load_state_dict(torchs.state_dict())
    assert back.state_dict() == ours.state_dict()
    for clone in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert clone.state_dict() == ours.state_dict()
    assert isinstance(ours, TorchGradScaler)


def test_a_scaler_that_is_off_does_nothing() -> None:
    scaler = GradScaler(enabled=False)
    weight = parameter(math.inf)
    one = torch.ones(1)
    assert scaler.scale(one) is one
    scaler.unscale_(sgd(weight))
    scaler.step(sgd(weight))
    scaler.update()
    assert weight.item() == -math.inf
    assert scaler.state_dict() == {}
    assert scaler.get_scale() == 1.0
    assert not scaler.is_enabled()
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="CUDA is not available"):
            assert not GradScaler("cuda").is_enabled()


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda values: values,
    lambda values: values.t(),
    lambda values: values[0].expand(2, 40001),
    lambda values: values[:, ::2],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_unscale_divides_and_finds_inf_and_nan(
    dtype: torch.dtype, layout: Callable[[Tensor], Tensor]
) -> None:
    for odd in (None, math.inf, -math.inf, math.nan):
        values = torch.randn(3, 40001).to(dtype)
        if odd is not None:
            values[0, 40000] = odd
        gradient = layout(values)
        weight = nn.Parameter(torch.zeros(gradient.shape, dtype=dtype))
        weight.grad = gradient
        wanted = gradient / 8
        optimizer = sgd(weight)
        scaler = started(init_scale=8.0)
        scaler.unscale_(optimizer)
        if odd is None:
            assert torch.equal(weight.grad, wanted)
        scaler.step(optimizer)
        assert bool(weight.any()) == (odd is None)


def test_unscale_takes_sparse_gradients() -> None:
    weight = nn.Parameter(torch.zeros(4, 2))
    indices = torch.tensor([[1, 1, 3]])
    weight.grad = torch.sparse_coo_tensor(indices, torch.full((3, 2), 16.0), (4, 2))
    optimizer = sgd(weight)
    scaler = started(init_scale=8.0)
    scaler.step(optimizer)
    assert weight.tolist() == [[0, 0], [-4, -4], [0, 0], [-2, -2]]
    scaler.update()
    weight.grad = torch.sparse_coo_tensor(indices, torch.full((3, 2), math.inf), (4, 2))
    scaler.step(optimizer)
    assert weight.tolist() == [[0, 0], [-4, -4], [0, 0], [-2, -2]]


def open_scaler(calls: str) -> tuple[GradScaler, torch.optim.Optimizer]:
    """After these calls: s(cale), u(nscale_), S(tep)."""
    scaler, optimizer = GradScaler(), sgd(parameter(1.0))
    for call in calls:
        if call == "s":
            scaler.scale(torch.ones(()))
        elif call == "u":
            scaler.unscale_(optimizer)
        else:
            scaler.step(optimizer)
    return scaler, optimizer


MISUSE: dict[str, tuple[str, Callable[[GradScaler, torch.optim.Optimizer], Any], str]] = {
    "unscale_ twice": ("su", lambda s, o: s.unscale_(o), "already been called on this optimizer"),
    "unscale_ after step": ("sS", lambda s, o: s.unscale_(o), "being called after step"),
    "step twice": ("sS", lambda s, o: s.step(o), "already been called since the last update"),
    "unscale_ first": ("", lambda s, o: s.unscale_(o), r"unscale_\(\) .* before scale\(\)"),
    "step first": ("", lambda s, o: s.step(o), r"step\(\) .* before scale\(\)"),
    "update first": ("", lambda s, o: s.update(), r"update\(\) .* before scale\(\)"),
    "update without step": ("s", lambda s, o: s.update(), "without a step"),
    "a closure": ("s", lambda s, o: s.step(o, closure=lambda: 0.0), "got a closure"),
    "no gradients": ("s", lambda s, o: (o.zero_grad(), s.step(o)), "without gradients"),
    "float16": (
        "s",
        lambda s, o: s.unscale_(sgd(parameter(1.0, torch.float16))),
        "float16 gradients",
    ),
    "float8": (
        "s",
        lambda s, o: s.unscale_(sgd(parameter(1.0, torch.float8_e5m2))),
        "dtype Float8_e5m2",
    ),
    "a scale of text": ("s", lambda s, o: s.scale("loss"), "got str"),
    "a scale of two": ("sS", lambda s, o: s.update(torch.ones(2)), "2 elements"),
    "an empty state": ("", lambda s, o: s.load_state_dict({}), "empty state"),
    "a copy within a step": ("sS", lambda s, o: copy.deepcopy(s), "middle of a step"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_told(name: str) -> None:
    calls, misuse, text = MISUSE[name]
    scaler, optimizer = open_scaler(calls)
    with pytest.raises(farandole.InvalidArgument, match=text):
        misuse(scaler, optimizer)


@pytest.mark.parametrize(
    "options",
    [
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
        {"init_scale": 0.0},
        {"init_scale": math.inf},
    ],
)
def test_numbers_that_cannot_be_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(farandole.InvalidArgument, match=next(iter(options))):
        GradScaler(**options)
    GradScaler(**options, enabled=False)


# Several ranks.

KINDS = ["plain", "full", "shard", "inner"]


def optimizer_of(kind: str, ddp: nn.Module, lr: float = 0.125) -> torch.optim.Optimizer:
    parameters = [p for p in ddp.parameters() if p.requires_grad]
    if kind == "plain":
        return torch.optim.SGD(parameters, lr=lr, momentum=0.5)
    if kind == "inner":  # a class that is not known runs unchanged on the shards
        plain = type("Plain", (torch.optim.SGD,), {})
        return ZeroRedundancyOptimizer(parameters, plain, element_wise=True, lr=lr, momentum=0.5)
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, gradients=kind, lr=lr, momentum=0.5)


def spoil(model: nn.Module, value: float) -> None:
    """One element of what this rank's next backward gives."""

    def changed(gradient: Tensor) -> Tensor:
        handle.remove()
        gradient = gradient.clone()
        gradient.view(-1)[-1] = value
        return gradient

    handle = list(model.parameters())[1].register_hook(changed)


def trains_as_alone(rank: int, world_size: int, kind: str, explicit: bool, torchs: bool) -> None:
    """Steps 2 and 5 are spoilt on the last rank; the others are those of one process."""
    model = Bowl()
    device = torch.get_default_device().type
    alone = copy.deepcopy(model).cpu()
    ddp = DistributedDataParallel(model)
    optimizer, unsharded = optimizer_of(kind, ddp), optimizer_of("plain", alone)
    options = {"init_scale": 2.0**10, "growth_interval": 3}
    scaler: Scaler = TorchGradScaler(device, **options) if torchs else GradScaler(**options)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        unsharded.zero_grad()
        if step in (2, 5) and rank == world_size - 1:
            spoil(model, math.inf if step == 2 else math.nan)
        scaler.scale(loss(ddp, rank, step)).backward()
        average_gradients(alone, world_size, step)
        if explicit:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step not in (2, 5):
            with torch.device("cpu"):
                unsharded.step()
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.wait()
    check_parameters(model, alone, exact=device == "cpu")
    assert_same_everywhere(model)
    assert scales == [1024, 1024, 512, 512, 512, 256, 256, 256]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("backend", "world_size"), [("farandole", 1), ("farandole", 3), ("hosts", 2), ("gloo", 2)]
)
def test_a_step_is_left_out_on_every_rank(
    backend: str, world_size: int, kind: str, explicit: bool
) -> None:
    setup = ranks.Setup(backend)
    ranks.run(trains_as_alone, world_size, kind, explicit, False, setup=setup)


@pytest.mark.parametrize("kind", ["plain", "full", "inner"])
def test_torchs_scaler_agrees_on_averages(kind: str) -> None:
    ranks.run(trains_as_alone, 2, kind, True, True)


@needs_devices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", DEVICES)
def test_accelerators_leave_the_same_steps_out(backend: str, kind: str) -> None:
    setup = ranks.Setup(backend)
    for world_size, explicit in ((1, True), (3, False)):
        ranks.run(trains_as_alone, world_size, kind, explicit, False, setup=setup)
    if kind != "shard":
        ranks.run(trains_as_alone, 2, kind, True, True, setup=setup)


def changes_gradients_alone(rank: int, world_size: int, kind: str) -> None:
    """What one rank does to its p.grad after backward is everybody's, whoever owns the element."""
    model = Bowl()
    before = copy.deepcopy(model)
    ddp = DistributedDataParallel(model)
    optimizer = optimizer_of(kind, ddp)
    scaler = GradScaler(init_scale=1024.0)
    changes = [(each, at) for each in range(world_size) for at in (0, -1)]
    for number, (changer, at) in enumerate(changes):
        optimizer.zero_grad()
        scaler.scale(loss(ddp, rank, number)).backward()
        if rank == changer:
            model.weights[1].grad.view(-1)[at] = math.nan
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 1024 / 2 ** (number + 1), (changer, at)
    for own, other in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *(("farandole", kind) for kind in KINDS),
        # Not "shard": what travels during backward cannot be changed after it.
        *(
            pytest.param("sim-lazy", kind, marks=needs_devices)
            for kind in ("plain", "full", "inner")
        ),
    ],
)
def test_ranks_agree_where_one_changes_its_gradients(backend: str, kind: str) -> None:
    ranks.run(changes_gradients_alone, 2, kind, setup=ranks.Setup(backend))


def clips(rank: int, world_size: int, kind: str) -> None:
    trial = Trial(Bowl(), torch.optim.SGD, gradients=kind, lr=0.125)
    scaler = GradScaler(init_scale=2.0**10)
    for step in range(4):
        trial.zero_grad()
        scaler.scale(loss(trial.ddp, rank, step)).backward()
        average_gradients(trial.alone, world_size, step)
        scaler.unscale_(trial.sharded)
        norm = trial.sharded.clip_grad_norm_(2.0)
        wanted = nn.utils.clip_grad_norm_(trial.alone.parameters(), 2.0)
        torch.testing.assert_close(norm.double().cpu(), wanted.double().cpu(), rtol=1e-5, atol=0)
        if step == 2:  # update() without a step: nothing was left out
            scaler.update()
            trial.sharded.step()
        else:
            scaler.step(trial.sharded)
            scaler.update()
        trial.step_alone()
    assert scaler.get_scale() == 2.0**10
    trial.is_watched = True
    trial.check("clipped", like=torch.float32)  # as torch takes norms


@pytest.mark.parametrize("kind", ["full", "shard"])
@pytest.mark.parametrize("backend", ["farandole", pytest.param("sim-lazy", marks=needs_devices)])
def test_gradients_are_clipped_between(backend: str, kind: str) -> None:
    ranks.run(clips, 2, kind, setup=ranks.Setup(backend))


def changes_after_clip(rank: int, world_size: int, kind: str) -> None:
    model = Bowl()
    before = copy.deepcopy(model)
    ddp = DistributedDataParallel(model)
    optimizer = optimizer_of(kind, ddp)
    assert isinstance(optimizer, ZeroRedundancyOptimizer)
    scaler = GradScaler(init_scale=4.0)
    scaler.scale(loss(ddp, rank, 0)).backward()
    scaler.unscale_(optimizer)
    optimizer.clip_grad_norm_(1.0)
    if rank == 1:
        model.weights[0].grad[1, 1] = math.nan
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    for own, other in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_nan_after_clipping_is_seen() -> None:
    ranks.run(changes_after_clip, 2, "shard")


def clips_values(rank: int, world_size: int, kind: str) -> None:
    """Before unscale_() it is scaled gradients that are clipped, in both modes."""
    trial = Trial(Bowl(), torch.optim.SGD, gradients=kind, lr=1.0)
    scaler = GradScaler(init_scale=8.0)
    scaler.scale(loss(trial.ddp, rank, 0)).backward()
    average_gradients(trial.alone, world_size, 0)
    trial.sharded.clip_grad_value_(0.25)
    scaler.step(trial.sharded)
    for p in trial.alone.parameters():
        p.grad.mul_(8).clamp_(-0.25, 0.25).div_(8)
    trial.unsharded.step()
    trial.check("clipped")


@pytest.mark.parametrize("kind", ["full", "shard"])
def test_values_are_clipped_where_the_program_says(kind: str) -> None:
    ranks.run(clips_values, 2, kind)


def drops_a_batch(rank: int, world_size: int, kind: str) -> None:
    """unscale_() and a look, then no step: the scale falls on every rank."""
    ddp = DistributedDataParallel(Bowl())
    optimizers = [optimizer_of(kind, ddp)]
    if kind != "shard":
        optimizers.append(optimizer_of(kind, DistributedDataParallel(Bowl())))
    scaler = GradScaler(init_scale=8.0)
    if rank == 1:
        spoil(ddp.module, math.inf)
    scaler.scale(loss(ddp, rank, 0)).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        optimizer.zero_grad()
    scaler.update()
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_may_be_dropped_after_unscale(kind: str) -> None:
    ranks.run(drops_a_batch, 2, kind)


def vanishing_scale(rank: int, world_size: int, kind: str) -> None:
    """One whose inverse is Inf: no gradient is finite that is multiplied by it."""
    model = Bowl()
    before = copy.deepcopy(model)
    ddp = DistributedDataParallel(model)
    optimizer = optimizer_of(kind, ddp)
    scaler = GradScaler(init_scale=1e-40)
    for explicit in (False, True):
        scaler.scale(loss(ddp, rank, 0)).backward()
        if explicit:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for own, other in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_next_to_zero_leaves_steps_out(kind: str) -> None:
    ranks.run(vanishing_scale, 1, kind)


def different_scales(rank: int, world_size: int, kind: str, explicit: bool) -> None:
    ddp = DistributedDataParallel(Bowl())
    optimizer = optimizer_of(kind, ddp)
    scaler = GradScaler(init_scale=2.0 ** (rank + 3))
    scaler.scale(loss(ddp, rank, 0)).backward()

    def step() -> None:
        if explicit:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)

    with pytest.raises(farandole.StepError, match="scale"):
        step()
    optimizer.zero_grad()
    scaler.update(8.0)
    scaler.scale(loss(ddp, rank, 0)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_same_everywhere(ddp.module)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("kind", ["plain", "full", "shard"])
def test_ranks_with_different_scales_are_told(kind: str, explicit: bool) -> None:
    ranks.run(different_scales, 2, kind, explicit)


def lacks_gradients(rank: int, world_size: int, kind: str) -> None:
    """The one that has none, or cannot unscale what it has, is named on the others."""
    ddp = DistributedDataParallel(Bowl())
    optimizer = optimizer_of(kind, ddp)
    scaler = GradScaler(init_scale=8.0)
    scaler.scale(loss(ddp, rank, 0)).backward()
    if rank == 1:
        optimizer.zero_grad()
    with pytest.raises(farandole.Error) as raised:
        scaler.step(optimizer)
    assert rank == 1 or isinstance(raised.value, farandole.StepError)
    optimizer.zero_grad()
    scaler.scale(loss(ddp, rank, 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.wait()
    assert_same_everywhere(ddp.module)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("farandole", "plain"),
        ("farandole", "full"),
        ("farandole", "shard"),
        ("hosts", "shard"),
        ("gloo", "plain"),
    ],
)
def test_a_rank_without_gradients_is_named(backend: str, kind: str) -> None:
    ranks.run(lacks_gradients, 2, kind, setup=ranks.Setup(backend))


def raises_before(rank: int, world_size: int, kind: str) -> None:
    """A step that did not reach the optimizer leaves nothing for the next."""
    ddp = DistributedDataParallel(Bowl())
    alone = copy.deepcopy(ddp.module)
    optimizer, unsharded = optimizer_of(kind, ddp), optimizer_of("plain", alone)
    scaler = GradScaler(init_scale=8.0)

    def fail(*_: object) -> None:
        raise RuntimeError("a hook")

    handle = optimizer.register_step_pre_hook(fail)
    scaler.scale(loss(ddp, rank, 0)).backward()
    with pytest.raises(RuntimeError, match="a hook"):
        scaler.step(optimizer)
    handle.remove()
    optimizer.zero_grad()
    loss(ddp, rank, 0).backward()
    optimizer.step()
    average_gradients(alone, world_size, 0)
    unsharded.step()
    for own, other in zip(ddp.parameters(), alone.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("kind", ["full", "shard"])
def test_a_step_that_never_came_changes_no_other(kind: str) -> None:
    ranks.run(raises_before, 2, kind)


def two_optimizers(rank: int, world_size: int, kind: str) -> None:
    """Two losses and optimizers under one scaler: one leaves its step out, the scale falls."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    before = copy.deepcopy(model)
    halves = [DistributedDataParallel(half) for half in model]
    optimizers = [optimizer_of(kind, half) for half in halves]
    scaler = GradScaler(init_scale=8.0)
    losses = [half(torch.ones(2, 4)).sum() for half in halves]
    if rank == 0:
        spoil(model[1], math.inf)
    for each in scaler.scale(losses):
        each.backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert torch.equal(model[1].weight, before[1].weight)
    assert not torch.equal(model[0].weight, before[0].weight)
    assert_same_everywhere(model)


@pytest.mark.parametrize("kind", ["plain", "full", "shard"])
def test_one_of_two_optimizers_leaves_its_step_out(kind: str) -> None:
    ranks.run(two_optimizers, 2, kind)


def joins(rank: int, world_size: int) -> int:
    """A rank without inputs calls no scaler."""
    from torch.distributed.algorithms.join import Join

    ddp = DistributedDataParallel(Bowl())
    optimizer = optimizer_of("plain", ddp)
    scaler = GradScaler(init_scale=16.0)
    steps = 0
    with Join([ddp]):
        for step in range(2 + rank):
            optimizer.zero_grad()
            scaler.scale(loss(ddp, rank, step)).backward()
            scaler.step(optimizer)
            scaler.update()
            steps += 1
    return steps


def test_ranks_without_inputs_are_not_waited_for() -> None:
    assert ranks.run(joins, 2) == [2, 3]


def fails_once(rank: int, world_size: int, kind: str) -> None:
    """A step that raised on one rank is taken again: gradients are divided once."""
    model = Bowl()
    alone = copy.deepcopy(model)
    ddp = DistributedDataParallel(model)
    optimizer, unsharded = optimizer_of(kind, ddp), optimizer_of("plain", alone)
    scaler = GradScaler(init_scale=2.0**10)
    scaler.scale(loss(ddp, rank, 0)).backward()
    average_gradients(alone, world_size, 0)
    optimizer.param_groups[0]["lr"] = "fast" if rank == 1 else 0.125
    with pytest.raises((farandole.Error, TypeError, ValueError)):
        scaler.step(optimizer)
    optimizer.param_groups[0]["lr"] = 0.125
    scaler.step(optimizer)
    scaler.update()
    unsharded.step()
    for own, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("kind", ["full", "shard"])
def test_a_step_that_raised_can_be_taken_again(kind: str) -> None:
    ranks.run(fails_once, 2, kind)


def differs(rank: int, world_size: int) -> None:
    """A scaler on one rank only."""
    ddp = DistributedDataParallel(Bowl())
    optimizer = optimizer_of("full", ddp)
    scaler = GradScaler()
    scaler.scale(loss(ddp, rank, 0)).backward()
    with pytest.raises(farandole.StepError, match="unless one is Inf or NaN"):
        scaler.step(optimizer) if rank == 0 else optimizer.step()


def test_a_scaler_on_one_rank_is_told() -> None:
    ranks.run(differs, 2)


class Loses:
    """A communication hook that makes zeros of Inf and NaN."""

    def __call__(
        self, state: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().nan_to_num_(0, 0, 0)
        dist.all_reduce(buffer)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer / dist.get_world_size())
        return future


def hooked(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(Bowl())
    ddp.register_comm_hook(None, Loses())
    for step in range(3):
        if rank == 1 and step == 1:
            spoil(ddp.module, math.inf)
        ddp.zero_grad()
        loss(ddp, rank, step).backward()
        finite = [bool(p.grad.isfinite().all()) for p in ddp.parameters() if p.numel() > 0]
        assert all(finite) == (step != 1)


def test_a_hook_cannot_lose_an_inf() -> None:
    ranks.run(hooked, 2)
