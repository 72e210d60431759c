# SPDX-License-Identifier: Apache-2.0
"""Groups, schedulers, clipping, accumulation, closures and uneven inputs around step()."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import ZeroRedundancyOptimizer
from farandole.optim import LAMB
from torch import Tensor, nn, optim
from torch.distributed.algorithms.join import Join
from torch.optim import lr_scheduler

import ranks
from zero_oracle import (
    PAIRS,
    SHAPES,
    Bowl,
    Trial,
    assert_same_everywhere,
    average_gradients,
    check_close,
    check_parameters,
    loss,
)

MODES = ["full", "shard"]
FILLED = [each for each in SHAPES if each[0] != (0,)]  # torch has no norms of nothing
NORMS = torch.float32  # that of torch is of float32 where a parameter is
SMALL = [((7, 3), torch.float32), ((), torch.float32), ((65,), torch.float64)]


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": parameters[:1], "weight_decay": 0.1},
        {"params": parameters[1:], "lr": 0.02},
    ]


# Groups and schedulers.

SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.2], total_steps=12),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.3),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "chained": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], [4]
    ),
}


def schedulers(rank: int, world_size: int, gradients: str) -> None:
    cases: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (optim.AdamW, {"lr": torch.tensor(0.05, dtype=torch.float64)}),
        (optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
    ]
    for optimizer, options in cases:
        for name, make in SCHEDULERS.items():
            trial = Trial(Bowl(SMALL), optimizer, gradients=gradients, groups=two_groups, **options)
            together = [make(each) for each in trial.optimizers]
            for step in range(10):
                trial.train(range(step, step + 1))
                for scheduler in together:
                    # The others do not train the unsharded one, but step its scheduler too.
                    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                        scheduler.step(1.0)
                    else:
                        scheduler.step()
            trial.check(f"{optimizer.__name__} with {name}", exact=optimizer is optim.SGD)
            assert [float(group["lr"]) for group in trial.sharded.param_groups] == [
                float(group["lr"]) for group in trial.unsharded.param_groups
            ]


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")
@pytest.mark.parametrize("gradients", MODES)
def test_groups_and_schedulers(gradients: str) -> None:
    ranks.run(schedulers, 2, gradients)


# Clipping.


def clip(trial: Trial, kind: str) -> Tensor:
    """Of the sharded optimizer; the norm before."""
    sharded = trial.sharded
    if kind == "torch":
        return nn.utils.clip_grad_norm_(trial.model.parameters(), 0.5)
    if kind == "value":
        sharded.clip_grad_value_(0.1)
        return torch.zeros(())
    if kind == "both":
        sharded.clip_grad_value_(0.5, foreach=False)
        return sharded.clip_grad_norm_(torch.tensor(0.7))
    return sharded.clip_grad_norm_(0.5, float(kind), error_if_nonfinite=True, foreach=None)


def clip_alone(trial: Trial, kind: str) -> Tensor:
    """The same of the unsharded one."""
    alone = list(trial.alone.parameters())
    if kind == "value":
        nn.utils.clip_grad_value_(alone, 0.1)
        return torch.zeros(())
    if kind == "both":
        nn.utils.clip_grad_value_(alone, 0.5)
        return nn.utils.clip_grad_norm_(alone, 0.7)
    return nn.utils.clip_grad_norm_(alone, 0.5, 2.0 if kind == "torch" else float(kind))


def clip_with(trial: Trial, kind: str) -> None:
    norm = clip(trial, kind)
    if not trial.is_watched:
        return
    wanted = clip_alone(trial, kind)
    torch.testing.assert_close(norm.double().cpu(), wanted.double().cpu(), rtol=1e-5, atol=1e-6)
    if trial.gradients == "shard":
        return
    for own, other in zip(trial.model.parameters(), trial.alone.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        check_close(own.grad, other.grad, kind, NORMS)


def clipping(rank: int, world_size: int, gradients: str) -> None:
    kinds = ["2.0", "1", "inf", "3", "value", "both", *(["torch"] if gradients == "full" else [])]
    cases: list[tuple[type[optim.Optimizer], dict[str, Any], bool]] = [
        (optim.SGD, {}, True),
        (optim.AdamW, {"eps": 1e-3}, True),  # not to divide by next to nothing
        (optim.RMSprop, {"eps": 1e-3}, False),
    ]
    for optimizer, options, ddp in cases:
        for kind in kinds:
            trial = Trial(Bowl(FILLED), optimizer, gradients=gradients, ddp=ddp, lr=0.05, **options)
            for step in range(4):
                trial.zero_grad()
                trial.backward(step)
                if step != 2:
                    clip_with(trial, kind)
                trial.step()
            trial.check(f"{optimizer.__name__}, norm {kind}", like=NORMS)
    trial = Trial(Bowl(SMALL), optim.SGD, gradients=gradients, lr=0.1)
    assert trial.ddp is not None
    (loss(trial.ddp, rank, 0) * math.inf).backward()
    with pytest.raises(RuntimeError, match="norm of the gradients is"):
        trial.sharded.clip_grad_norm_(1.0, error_if_nonfinite=True)
    assert not math.isfinite(trial.sharded.clip_grad_norm_(1.0))


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_clipping(backend: str, gradients: str) -> None:
    world_size = 3 if backend == "farandole" else 2
    ranks.run(clipping, world_size, gradients, setup=ranks.Setup(backend=backend))


# Gradients of several passes, and none.


def accumulation(rank: int, world_size: int, gradients: str) -> None:
    """Passes under no_sync(), and synchronized ones, add up."""
    for synchronized in ("last", "all", "some"):
        trial = Trial(Bowl(), optim.SGD, gradients=gradients, lr=0.1, momentum=0.9)
        assert trial.ddp is not None
        for step in range(4):
            trial.zero_grad()
            for turn in range(3):
                skips = turn < 2 and (synchronized == "last" or (synchronized == "some" and turn))
                with trial.ddp.no_sync() if skips else nullcontext():
                    trial.backward(10 * step + turn)
            trial.step()
        trial.check(synchronized)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_accumulation(backend: str, gradients: str) -> None:
    ranks.run(accumulation, 2, gradients, setup=ranks.Setup(backend=backend))


def without_gradients(rank: int, world_size: int, gradients: str) -> None:
    """Parameters without gradients keep their value, their state and their count of steps."""
    for optimizer in (optim.AdamW, optim.NAdam, LAMB):
        trial = Trial(Bowl(), optimizer, gradients=gradients, ddp=False, lr=0.01)
        trial.sharded.step()  # nothing has one
        for step in range(6):
            trial.zero_grad()
            trial.backward(step)
            for model in (trial.model, trial.alone):
                for number, p in enumerate(model.parameters()):
                    if (step + number) % 3 == 0:
                        p.grad = None
            trial.step()
            trial.check(f"{optimizer.__name__} step {step}")


def frozen(rank: int, world_size: int, gradients: str) -> None:
    """Parameters that are frozen at first, or later."""
    for optimizer, ddp in ((optim.AdamW, False), (optim.SGD, False), (optim.AdamW, True)):
        model = Bowl()
        trainable = list(model.parameters())
        for p in trainable[1:3]:
            p.requires_grad_(False)
        trial = Trial(model, optimizer, gradients=gradients, ddp=ddp, lr=0.05)
        trial.train(range(3))
        trial.check("frozen")
        for part in (trial.model, trial.alone):
            for number, p in enumerate(part.parameters()):
                p.requires_grad_(number != 4)
                if number == 4:
                    p.grad = None
        trial.requires_grad_has_changed()
        trial.train(range(3, 6))
        trial.check("unfrozen")


@pytest.mark.parametrize("gradients", MODES)
def test_parameters_without_gradients(gradients: str) -> None:
    ranks.run(without_gradients, 2, gradients)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_frozen_parameters(backend: str, gradients: str) -> None:
    ranks.run(frozen, 3, gradients, setup=ranks.Setup(backend=backend))


# Groups that are added later.


def later_groups(rank: int, world_size: int, gradients: str) -> None:
    def first_group(model: nn.Module) -> list[nn.Parameter]:
        return list(model.parameters())[:3]

    for optimizer, ddp in ((optim.SGD, False), (optim.AdamW, True), (optim.NAdam, False)):
        model = Bowl()
        if gradients == "shard":  # where each gradient has its place in a shard
            for p in list(model.parameters())[3:]:
                p.requires_grad_(False)
        trial = Trial(model, optimizer, gradients=gradients, groups=first_group, ddp=ddp, lr=0.05)
        trial.train(range(3))
        for each, part in zip(trial.optimizers, (trial.model, trial.alone), strict=True):
            rest = list(part.parameters())[3:]
            each.add_param_group({"params": rest[:1], "lr": 0.01})
            each.add_param_group({"params": rest[1:], "weight_decay": 0.1})
            for p in rest:
                p.requires_grad_(True)
        assert len(trial.sharded.param_groups) == 3
        trial.requires_grad_has_changed()
        trial.train(range(3, 6))
        trial.check(optimizer.__name__)
        trial.sharded.consolidate_state_dict()
        if rank == 0 and optimizer is not optim.SGD:
            assert set(trial.sharded.state_dict()["state"]) >= {0, 1, 2, 3, 5, 6, 7}


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_groups_are_added_later(backend: str, gradients: str) -> None:
    ranks.run(later_groups, 2, gradients, setup=ranks.Setup(backend=backend))


def named_parameters(rank: int, world_size: int) -> None:
    model = Bowl(SMALL)
    for given in (
        model.named_parameters(),
        [{"params": model.named_parameters(), "lr": 0.1}],
    ):
        optimizer = ZeroRedundancyOptimizer(given, optim.Adam)
        names = [name for name, _ in model.named_parameters()]
        assert optimizer.param_groups[0]["param_names"] == names
        loss(model, rank, 0).backward()
        optimizer.step()
        optimizer.consolidate_state_dict(1)
        if rank == 1:
            assert optimizer.state_dict()["param_groups"][0]["param_names"] == names
    generator = (p for p in model.parameters())
    assert len(ZeroRedundancyOptimizer(generator, optim.SGD).param_groups[0]["params"]) == 3


# Closures, hooks, scalers.


def closures(rank: int, world_size: int) -> None:
    for optimizer in (optim.SGD, optim.Adagrad):
        trial = Trial(Bowl(SMALL), optimizer, lr=0.1)

        def closure(trial: Trial = trial, step: int = 0) -> Tensor:
            assert torch.is_grad_enabled()
            trial.zero_grad()
            trial.backward(step)
            return torch.tensor(0.25 * step)

        for step in range(3):
            assert trial.sharded.step(partial(closure, step=step)) == 0.25 * step
            if trial.is_watched:
                trial.step_alone()
        trial.check("closure")
        assert trial.sharded.step() is None


def hooks(rank: int, world_size: int) -> None:
    seen = []
    model = Bowl(SMALL)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.Adam)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before step"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after step"))
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("before state_dict"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: {**state, "param_groups": groups})
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("after load"))
    loss(model, rank, 0).backward()
    optimizer.step()
    optimizer.consolidate_state_dict(rank_with_state := 1)
    states = [optimizer.state_dict() if rank == rank_with_state else None]
    dist.broadcast_object_list(states, rank_with_state)
    assert states[0]["more"] == 1
    groups = [{**states[0]["param_groups"][0], "lr": 0.5}]
    optimizer.load_state_dict(states[0])
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert seen.count("before step") == seen.count("after step") == 1
    assert seen.count("before state_dict") == (rank == rank_with_state)
    assert seen[-1] == "after load"


def scaler(rank: int, world_size: int) -> None:
    """torch's GradScaler skips a step in which a gradient of one rank is infinite."""
    trial = Trial(Bowl(), optim.AdamW, lr=0.1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2) for _ in range(2)]
    assert trial.ddp is not None
    for step in range(6):
        trial.zero_grad()
        scalers[0].scale(loss(trial.ddp, rank, step)).backward()
        average_gradients(trial.alone, world_size, step)
        factor = scalers[1].get_scale()
        for p, other in zip(trial.model.parameters(), trial.alone.parameters(), strict=True):
            assert p.grad is not None
            assert other.grad is not None
            other.grad.mul_(factor)
            if step == 3 and p.numel() > 1000:
                p.grad[0] = other.grad[0] = math.inf
        for own, optimizer, model in zip(
            scalers, trial.optimizers, (trial.model, trial.alone), strict=True
        ):
            own.scale(torch.ones(()))  # makes its tensors
            own.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            own.step(optimizer)
            own.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 512.0
    trial.is_watched = True
    trial.check("scaler", like=NORMS)


CHECKS = [named_parameters, closures, hooks, scaler]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check(rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_names_closures_hooks_and_scalers(backend: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend=backend))


# Uneven inputs.


def joined(rank: int, world_size: int, gradients: str) -> None:
    """Ranks have 2, 4, ... batches; those that are done take part in the steps of the others."""
    for optimizer in (optim.AdamW, optim.RMSprop):
        trial = Trial(Bowl(), optimizer, gradients=gradients, lr=0.05)
        assert trial.ddp is not None
        with Join([trial.ddp, trial.sharded]):
            for step in range(2 + 2 * rank):
                trial.sharded.zero_grad()
                loss(trial.ddp, rank, step).backward()
                trial.sharded.step()
        trial.sharded.wait()
        assert_same_everywhere(trial.model)
        for step in range(2 * world_size):
            trial.alone.zero_grad()
            for other in range(world_size):
                if step < 2 + 2 * other:
                    (loss(trial.alone, other, step) / world_size).backward()
            trial.step_alone()
        check_parameters(trial.model, trial.alone, optimizer.__name__)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_uneven_inputs(backend: str, gradients: str) -> None:
    ranks.run(joined, 3, gradients, setup=ranks.Setup(backend=backend))


def joined_alone(rank: int, world_size: int) -> None:
    """The optimizer is the first of the context and the only one."""
    model = Bowl(SMALL)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1)
    assert optimizer.join_device == torch.device("cpu")
    assert optimizer.join_process_group is dist.group.WORLD
    average_gradients(model, world_size, 0)
    with Join([optimizer]):
        for _ in range(1 + rank):
            optimizer.step()
    assert_same_everywhere(model)
    early = Join([optimizer], throw_on_early_termination=True)
    with pytest.raises(RuntimeError, match="exhausted"), early:  # noqa: PT012
        for _ in range(1 + rank):
            optimizer.step()


def test_joins_of_the_optimizer_alone() -> None:
    ranks.run(joined_alone, 2)
