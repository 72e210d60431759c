# SPDX-License-Identifier: Apache-2.0
"""State that is brought together, saved, loaded and sharded anew."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import InvalidArgument, StepError, ZeroRedundancyOptimizer
from farandole.optim import LAMB, LARS
from torch import Tensor, nn, optim

import ranks
from zero_oracle import (
    PAIRS,
    SHAPES,
    TOLERANCE,
    Bowl,
    Trial,
    all_parameters,
    check_close,
    check_parameters,
    loss,
)

FILLED = [each for each in SHAPES if each[0] != (0,)]
SMALL = [((7, 3), torch.float32), ((), torch.float32), ((65,), torch.float64)]
OPTIMIZERS: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (optim.AdamW, {"lr": 0.01}),
    (LAMB, {"lr": 0.01}),
    (LARS, {"lr": 0.1}),
    (optim.Adadelta, {}),
    (optim.Adagrad, {}),
    (optim.Adamax, {}),
    (optim.ASGD, {"t0": 2}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    (optim.Rprop, {}),
]


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[:3]}, {"params": parameters[3:], "weight_decay": 0.0, "lr": 0.02}]


def check_states(
    own: dict[str, Any], wanted: dict[str, Any], text: str, like: torch.dtype | None
) -> None:
    """The same keys, types, shapes and dtypes, and nearly the same numbers."""
    assert own.keys() == wanted.keys()
    assert own["param_groups"] == wanted["param_groups"], text
    assert list(own["state"]) == list(wanted["state"]), text
    for number, state in wanted["state"].items():
        assert list(own["state"][number]) == list(state), text
        for name, value in state.items():
            other = own["state"][number][name]
            assert type(other) is type(value), f"{text}: {number} {name}"
            if isinstance(value, Tensor):
                assert other.shape == value.shape, f"{text}: {number} {name}"
                assert other.dtype == value.dtype, f"{text}: {number} {name}"
                check_close(other, value, f"{text}: {number} {name}", like)
            else:
                assert other == value


def share(state: dict[str, Any] | None, root: int) -> dict[str, Any]:
    states = [state]
    dist.broadcast_object_list(states, root)
    assert states[0] is not None
    return states[0]


def round_trips(rank: int, world_size: int, gradients: str) -> None:
    """To torch's optimizer and back, in the middle of training."""
    for number, (optimizer, options) in enumerate(OPTIMIZERS):
        text = f"{optimizer.__name__} {options}"
        to = number % world_size
        trial = Trial(
            Bowl(FILLED),
            optimizer,
            gradients=gradients,
            groups=two_groups if number % 2 else all_parameters,
            watcher=to,
            **options,
        )
        trial.train(range(2))
        for model in (trial.model, trial.alone):  # whose state goes on
            next(model.parameters()).requires_grad_(False).grad = None
        trial.requires_grad_has_changed()
        trial.train(range(2, 3))
        trial.sharded.consolidate_state_dict(to)
        if rank != to:
            with pytest.raises(InvalidArgument, match=rf"_state_dict\(to={rank}\)"):
                trial.sharded.state_dict()
        saved = share(trial.sharded.state_dict() if rank == to else None, to)
        if rank == to:
            check_states(saved, trial.unsharded.state_dict(), text, trial.like)
        # A plain one takes it, and a sharded one what that saves.
        trial.unsharded.load_state_dict(saved)
        trial.sharded = ZeroRedundancyOptimizer(
            two_groups(trial.model) if number % 2 else trial.model.parameters(),
            optimizer,
            gradients=gradients,  # type: ignore[arg-type]
            **{**options, "lr": 5.0},
        )
        trial.sharded.load_state_dict(trial.unsharded.state_dict())
        trial.train(range(3, 6))
        for model in (trial.model, trial.alone):
            next(model.parameters()).requires_grad_(True)
        trial.requires_grad_has_changed()
        trial.train(range(6, 8))
        trial.check(text)
        trial.sharded.consolidate_state_dict(to)
        if rank == to:
            own = trial.sharded.state_dict()
            check_states(own, trial.unsharded.state_dict(), text, trial.like)
        trial.sharded.step()
        with pytest.raises(RuntimeError, match="consolidate_state_dict"):
            trial.sharded.state_dict()


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_round_trips(backend: str, gradients: str) -> None:
    world_size = 3 if backend == "farandole" else 2
    ranks.run(round_trips, world_size, gradients, setup=ranks.Setup(backend=backend))


MOVED = [(optim.AdamW, {"lr": 0.01}), (LARS, {"lr": 0.1}), (optim.NAdam, {})]


def first_half(rank: int, world_size: int) -> bytes:
    saved = []
    for optimizer, options in MOVED:
        model = Bowl()
        sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer, **options)
        for step in range(3):
            model.zero_grad()
            loss(model, 0, step).backward()
            sharded.step()
        sharded.consolidate_state_dict()
        if rank == 0:
            saved.append((model.state_dict(), sharded.state_dict()))
    file = io.BytesIO()
    torch.save(saved, file)
    return file.getvalue()


def second_half(rank: int, world_size: int, file: bytes) -> None:
    saved = torch.load(io.BytesIO(file))
    for (optimizer, options), (parameters, state) in zip(MOVED, saved, strict=True):
        wanted = Bowl()
        unsharded = optimizer(wanted.parameters(), **options)
        model = Bowl()
        sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer, **options)
        model.load_state_dict(parameters)
        sharded.load_state_dict(state)
        for step in range(6):
            for each, own in ((unsharded, wanted), (sharded, model)):
                if each is sharded and step < 3:
                    continue
                own.zero_grad()
                loss(own, 0, step).backward()
                each.step()
        check_parameters(model, wanted, optimizer.__name__)


def test_state_of_other_world_sizes() -> None:
    saved = ranks.run(first_half, 3)[0]
    ranks.run(second_half, 2, saved)
    ranks.run(second_half, 1, saved)
    ranks.run(second_half, 4, saved)


def half_parameters(rank: int, world_size: int) -> None:
    """What float32 knows more than bfloat16 is saved too; torch's optimizers take no notice."""
    model = Bowl([((40,), torch.bfloat16), ((7,), torch.float32)])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-4)

    def train(each: optim.Optimizer, own: nn.Module) -> None:
        for step in range(5):
            own.zero_grad()
            loss(own, 0, step).backward()
            each.step()

    train(optimizer, model)
    optimizer.consolidate_state_dict(0)
    state = share(optimizer.state_dict() if rank == 0 else None, 0)
    assert list(state["state"][0]) == ["step", "exp_avg", "exp_avg_sq", "master_parameter"]
    assert list(state["state"][1]) == ["step", "exp_avg", "exp_avg_sq"]
    master = state["state"][0]["master_parameter"]
    assert master.dtype == torch.float32
    assert torch.equal(master.bfloat16(), model.weights[0])
    assert not torch.equal(master, model.weights[0].float())
    copy = Bowl([((40,), torch.bfloat16), ((7,), torch.float32)])
    copy.load_state_dict(model.state_dict())
    other = ZeroRedundancyOptimizer(copy.parameters(), optim.AdamW, lr=1e-4)
    other.load_state_dict(state)
    plain = optim.AdamW(Bowl([((40,), torch.bfloat16), ((7,), torch.float32)]).parameters())
    plain.load_state_dict(state)
    train(optimizer, model)
    train(other, copy)
    assert all(map(torch.equal, copy.parameters(), model.parameters()))
    # Without it the float32 values begin as the parameters are.
    del state["state"][0]["master_parameter"]
    other.load_state_dict(state)
    train(other, copy)


class CarefulAdamW(optim.AdamW):
    """Without fused loops."""


def states_of_other_classes(rank: int, world_size: int) -> None:
    """A class takes over what another one saved as torch's own class does."""
    classes: list[Any] = [optim.Adam, optim.AdamW, CarefulAdamW, optim.NAdam, optim.RAdam]
    for saver in classes:
        for loader in classes:
            if (saver is optim.NAdam) != (loader is optim.NAdam):
                continue  # which has more in its state
            source = Bowl()
            saving = saver(source.parameters(), lr=0.05, weight_decay=0.1)
            loss(source, 0, 0).backward()
            saving.step()
            state = saving.state_dict()
            state["param_groups"][0]["unknown"] = 5
            plain, sharded = Bowl(), Bowl()
            for model in (plain, sharded):
                model.load_state_dict(source.state_dict())
            own = loader(plain.parameters(), lr=1.0)
            own.load_state_dict(state)
            zero = ZeroRedundancyOptimizer(
                sharded.parameters(),
                loader,
                lr=1.0,
                element_wise=True if loader is CarefulAdamW else None,
            )
            zero.load_state_dict(state)
            wanted = {k: v for k, v in own.param_groups[0].items() if k != "params"}
            got = {k: v for k, v in zero.param_groups[0].items() if k != "params"}
            assert {k: got[k] for k in wanted} == wanted, (saver, loader)
            for each, model in ((own, plain), (zero, sharded)):
                for step in range(1, 3):
                    model.zero_grad()
                    loss(model, 0, step).backward()
                    each.step()
            for p, q in zip(sharded.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(p, q, **TOLERANCE[p.dtype])
    # What an old version did not save: the class's word for it, else the default of this one.
    del state["param_groups"][0]["decoupled_weight_decay"], state["param_groups"][0]["eps"]
    zero.load_state_dict(state)
    assert zero.param_groups[0]["eps"] == zero.defaults["eps"]


def masters_before_a_step(rank: int, world_size: int) -> None:
    """What was loaded is saved again, also where nothing but float32 values makes the state."""
    shapes = [((40,), torch.bfloat16), ((33, 5), torch.float16)]
    for make, options in (
        (optim.SGD, {"lr": 1e-3}),
        (optim.SGD, {"lr": 1e-3, "momentum": 0.9, "dampening": 0.5}),
        (LARS, {"lr": 1.0, "momentum": 0.0}),
        (LARS, {"lr": 1.0}),
        (LAMB, {"lr": 1e-3}),
        (optim.RMSprop, {"lr": 1e-3}),
    ):
        model = Bowl(shapes)
        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), make, **options)
        for step in range(3):
            model.zero_grad()
            loss(model, 0, step).backward()
            optimizer.step()
        optimizer.consolidate_state_dict(0)
        saved = share(optimizer.state_dict() if rank == 0 else None, 0)
        again: Any = Bowl(shapes)
        again.load_state_dict(model.state_dict())
        other = ZeroRedundancyOptimizer(again.parameters(), make, **options)
        other.load_state_dict(saved)
        other.consolidate_state_dict(0)
        once_more = share(other.state_dict() if rank == 0 else None, 0)
        for number, state in saved["state"].items():
            assert state.keys() == once_more["state"][number].keys()
            for name, value in state.items():
                assert torch.equal(value, once_more["state"][number][name]), name
        for step in range(3, 5):
            for each, own in ((optimizer, model), (other, again)):
                own.zero_grad()
                loss(own, 0, step).backward()
                each.step()
        assert all(map(torch.equal, model.parameters(), again.parameters()))


def momentum_that_begins_after_a_load(rank: int, world_size: int) -> None:
    """A state without a buffer: the first one is the gradient, without dampening, as in torch."""
    model, plain = Bowl([((40,), torch.bfloat16)]), Bowl([((40,), torch.float32)])
    first: Any = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1)
    loss(model, 0, 0).backward()
    first.step()
    first.consolidate_state_dict(0)
    saved = share(first.state_dict() if rank == 0 else None, 0)
    saved["param_groups"][0].update(momentum=0.9, dampening=0.5)
    first.load_state_dict(saved)
    with torch.no_grad():
        plain.weights[0].copy_(saved["state"][0]["master_parameter"])
    alone = optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    for step in range(1, 4):
        model.zero_grad()
        loss(model, 0, step).backward()
        plain.weights[0].grad = model.weights[0].grad.float()
        first.step()
        alone.step()
        assert torch.equal(model.weights[0], plain.weights[0].bfloat16())


def halves_that_become_float32(rank: int, world_size: int) -> None:
    """A model that changes dtypes between rebuilds has masters of what is half, and no others."""
    model = Bowl([((40,), torch.bfloat16), ((33, 5), torch.bfloat16), ((9,), torch.float32)])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-4)

    def step(number: int) -> None:
        model.zero_grad()
        loss(model, 0, number).backward()
        optimizer.step()

    step(0)
    halves = {0, 1}
    for number, (index, dtype) in enumerate(
        [(0, torch.float32), (1, torch.float32), (0, torch.bfloat16), (1, torch.float16)]
    ):
        weight = model.weights[index]
        weight.grad = None
        weight.data = weight.data.to(dtype)
        halves = halves - {index} if dtype == torch.float32 else halves | {index}
        optimizer.rebuild()
        for more in range(2):
            step(2 * number + more + 1)
        optimizer.consolidate_state_dict(0)
        if rank != 0:
            continue
        states = optimizer.state_dict()["state"]
        assert {i for i, state in states.items() if "master_parameter" in state} == halves
        for i in halves:
            master = states[i]["master_parameter"]
            assert master.shape == model.weights[i].shape
            assert torch.equal(master.to(model.weights[i].dtype), model.weights[i])


class Moody(optim.RMSprop):
    """Cannot be made when its rank says so."""

    fails = False

    def __init__(self, *args: Any, **options: Any) -> None:
        if Moody.fails:
            raise ArithmeticError("not today")
        super().__init__(*args, **options)


def changes_that_fail_on_one_rank(rank: int, world_size: int) -> None:
    """A group or a rebuild comes about on all ranks or on none, and training goes on."""
    model, plain = Bowl(), Bowl()
    parameters = list(model.parameters())
    first = [{"params": parameters[:3]}]
    optimizer = ZeroRedundancyOptimizer(first, Moody, lr=0.01, element_wise=True)
    wanted = list(plain.parameters())
    alone = optim.RMSprop([{"params": wanted[:3]}], lr=0.01)

    def attempt(change: Callable[[], None], name: str, number: int) -> None:
        Moody.fails = rank == number
        if number == world_size:
            change()
        elif Moody.fails:
            with pytest.raises(ArithmeticError, match="not today"):
                change()
        else:
            text = rf"{name}\(\) failed on rank {number} of group .*\n.*ArithmeticError: not today"
            with pytest.raises(StepError, match=text):
                change()
        Moody.fails = False

    def step(number: int) -> None:
        for each, own in ((optimizer, model), (alone, plain)):
            own.zero_grad()
            loss(own, 0, number).backward()
            each.step()

    for number in range(world_size + 1):
        step(2 * number)
        attempt(optimizer.rebuild, "rebuild", number)
        attempt(
            lambda: optimizer.add_param_group({"params": parameters[3:]}),
            "add_param_group",
            number,
        )
        assert len(optimizer.param_groups) == 1 + (number == world_size)
        step(2 * number + 1)
    optimizer.consolidate_state_dict(0)
    for p, q in zip(parameters[:3], wanted[:3], strict=True):
        torch.testing.assert_close(p, q, **TOLERANCE[p.dtype])


def rebuilds(rank: int, world_size: int, gradients: str) -> None:
    """Sharded anew over the same ranks, over others in between, and over a part of them."""
    for optimizer, options in (
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (optim.AdamW, {"lr": 0.05}),
        (optim.NAdam, {}),
        (optim.Adagrad, {}),
    ):
        trial = Trial(
            Bowl(), optimizer, gradients=gradients, ddp=False, groups=two_groups, **options
        )
        trial.train(range(3))
        trial.sharded.rebuild()
        trial.train(range(3, 6))
        trial.check(f"{optimizer.__name__} after rebuild()")
        again = dist.new_group()
        assert isinstance(again, dist.ProcessGroup)
        if trial.ddp is not None:
            trial.ddp.set_process_group(again)
        trial.sharded.rebuild(again)
        assert trial.sharded.process_group is again
        trial.train(range(6, 9))
        trial.check(f"{optimizer.__name__} after rebuild(group)")
        trial.sharded.consolidate_state_dict(0)
        if rank == 0:
            assert len(trial.sharded.state_dict()["param_groups"]) == 2


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_rebuild(backend: str, gradients: str) -> None:
    ranks.run(rebuilds, 3, gradients, setup=ranks.Setup(backend=backend))


def bytes_of_state(rank: int, world_size: int) -> None:
    """Each rank has its part of the state, and no more than 1 % beside it."""
    elements = 100_003
    for optimizer, arrays in ((optim.AdamW, 2), (optim.NAdam, 2), (optim.SGD, 0)):
        model = nn.ParameterList([torch.ones(elements), torch.ones(7, 11), torch.ones(())])
        sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer)
        for p in model:
            p.grad = torch.ones_like(p)
        sharded.step()
        total = arrays * 4 * sum(p.numel() for p in model)
        own = sharded.state_bytes()
        assert total / world_size * 0.9 <= own <= total / world_size * 1.01 + 64 * 4 * arrays


def bad_states(rank: int, world_size: int) -> None:
    model = Bowl(SMALL)
    sharded = ZeroRedundancyOptimizer(model.named_parameters(), optim.Adam)
    rms = ZeroRedundancyOptimizer(model.parameters(), optim.RMSprop)
    for each in (sharded, rms):
        loss(model, rank, 0).backward()
        each.step()

    def saved(optimizer: ZeroRedundancyOptimizer) -> dict[str, Any]:
        optimizer.consolidate_state_dict(0)
        return share(optimizer.state_dict() if rank == 0 else None, 0)

    state = saved(sharded)
    state["state"][0]["exp_avg"] = torch.zeros(3, 7)
    with pytest.raises(InvalidArgument, match=r"'exp_avg' of shape \(3, 7\) for weights\.0"):
        sharded.load_state_dict(state)
    state = saved(rms)
    state["state"][2]["square_avg"] = torch.zeros(64)
    with pytest.raises(InvalidArgument, match=r"\(64,\) for param_groups\[0\]\['params'\]\[2\]"):
        rms.load_state_dict(state)
    state = saved(sharded)
    del state["state"][1]["exp_avg_sq"]
    with pytest.raises(InvalidArgument, match=r"a state of weights\.1 without exp_avg_sq"):
        sharded.load_state_dict(state)
    state = saved(sharded)
    state["state"][9] = state["state"][0]
    with pytest.raises(InvalidArgument, match=r"a state of \['9'\]"):
        sharded.load_state_dict(state)
    state = saved(sharded)
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters"):
        sharded.load_state_dict(state)
    sharded.load_state_dict(saved(sharded))
    for to in (-1, world_size):
        with pytest.raises(InvalidArgument, match=f"got to={to}"):
            sharded.consolidate_state_dict(to)


CHECKS = [
    half_parameters,
    bytes_of_state,
    bad_states,
    states_of_other_classes,
    masters_before_a_step,
    momentum_that_begins_after_a_load,
    halves_that_become_float32,
    changes_that_fail_on_one_rank,
]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check(rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_half_parameters_bytes_and_bad_states(backend: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend=backend))
