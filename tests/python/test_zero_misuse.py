# SPDX-License-Identifier: Apache-2.0
"""What a sharded optimizer must refuse, and what must work after something was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import InvalidArgument, MismatchError, ZeroRedundancyOptimizer
from torch import Tensor, nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import ranks
from zero_oracle import Bowl, Trial, assert_same_everywhere, check_close, loss

MODES = ["full", "shard"]
SMALL = [((7, 3), torch.float32), ((), torch.float32), ((65,), torch.float64)]
FLOATS = [((7, 3), torch.float32), ((), torch.float32), ((65,), torch.float32)]


def partly_frozen(shapes: Any = SMALL) -> Bowl:
    """Whose first weight is trained later."""
    model = Bowl(shapes)
    model.weights[0].requires_grad_(False)
    return model


def unfreeze(trial: Trial) -> None:
    for model in (trial.model, trial.alone):
        for p in model.parameters():
            p.requires_grad_(True)


# What is given to it.


def shared_memory(rank: int, world_size: int, gradients: str) -> None:
    """Parameters that lie in one place would be torn apart."""
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    same = nn.Parameter(torch.zeros(6, 4))
    same.data = weight
    cases: list[tuple[str, Tensor, Tensor]] = [
        ("transposed", nn.Parameter(weight), nn.Parameter(weight.t())),
        ("rows", nn.Parameter(weight), nn.Parameter(weight[2:])),
        ("data", nn.Parameter(weight), same),
        ("columns", nn.Parameter(weight[:, ::2]), nn.Parameter(weight[:, 1::2])),
    ]
    for text, one, other in cases:
        before = one.data_ptr(), other.data_ptr()
        with pytest.raises(InvalidArgument, match=r"'(one|other)' and '(one|other)' share"):
            ZeroRedundancyOptimizer([("one", one), ("other", other)], optim.SGD)
        assert (one.data_ptr(), other.data_ptr()) == before, text
    with pytest.raises(InvalidArgument, match=r"elements of parameter .* share memory"):
        ZeroRedundancyOptimizer([nn.Parameter(torch.zeros(1).expand(8))], optim.SGD)
    planned = nn.Parameter(weight[:2])
    optimizer = ZeroRedundancyOptimizer([planned], optim.SGD)
    with pytest.raises(InvalidArgument, match="share memory"):
        optimizer.add_param_group({"params": [nn.Parameter(planned.detach()[1])]})
    assert len(optimizer.param_groups) == 1


def hooked(rank: int, world_size: int, gradients: str) -> None:
    """With a communication hook gradients cannot be left to the optimizer; the model goes on."""
    trial = Trial(Bowl(FLOATS), optim.SGD, lr=0.1)
    assert trial.ddp is not None
    trial.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(InvalidArgument, match="communication hook"):
        ZeroRedundancyOptimizer(trial.model.parameters(), optim.SGD, gradients="shard")
    with torch.no_grad():
        trial.ddp([p.detach() for p in trial.model.parameters()])
    trial.train(range(2))
    trial.check("with a hook")


def added_in_vain(rank: int, world_size: int, gradients: str) -> None:
    """A group that cannot be added is not there, and may be added once it is right."""
    for optimizer in (optim.AdamW, optim.RMSprop):
        trial = Trial(Bowl(SMALL), optimizer, ddp=False, lr=0.01)
        trial.train(range(2))
        late = nn.Parameter(torch.full((5,), float(rank)))
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="differ"):
                trial.sharded.add_param_group({"params": [nn.Parameter(torch.ones(2 + rank))]})
        if dist.get_backend() == "farandole":  # one rank cannot add it, the other one could
            wrong = nn.Parameter(torch.ones(2)) if rank == 0 else torch.ones(2, dtype=torch.int32)
            with pytest.raises(MismatchError if rank == 0 else InvalidArgument):
                trial.sharded.add_param_group({"params": [wrong]})
        assert len(trial.sharded.param_groups) == 1
        trial.train(range(2, 4))
        trial.check("without the group")
        trial.sharded.add_param_group({"params": [late], "lr": 0.5})
        trial.zero_grad()
        trial.backward(4)
        late.grad = torch.ones(5)
        with pytest.raises(InvalidArgument, match="differ"):
            trial.sharded.step()
        with torch.no_grad():
            late.fill_(1)
        trial.step()
        trial.check("with the group")
        assert (late < 1).all()


def added_between(rank: int, world_size: int, gradients: str) -> None:
    """A layer that is unfrozen before a group has it."""
    model = partly_frozen()
    trial = Trial(model, optim.SGD, gradients=gradients, groups=lambda m: m.weights[1:], lr=0.1)
    trial.train(range(2))
    unfreeze(trial)
    for step in range(2, 5):
        for each in (trial.model, trial.alone):
            each.zero_grad()
        trial.backward(step)
        if step == 3:
            for each, optimizer in zip((trial.model, trial.alone), trial.optimizers, strict=True):
                optimizer.add_param_group({"params": [each.weights[0]], "lr": 0.2})
        trial.step()
    trial.check("added between backward and step")


# Closures.


class Wanted(Exception):
    """What a closure raises."""


def raises(where: str, trial: Trial, step: int) -> Callable[[], Any]:
    """A closure that does on rank 1."""

    def raise_now(gradient: Tensor | None = None) -> None:
        raise Wanted(where)

    def closure() -> Tensor:
        trial.sharded.zero_grad()
        if trial.rank == 1 and where == "before forward":
            raise_now()
        value = loss(trial.ddp, trial.rank, step)
        if trial.rank == 1 and where == "before backward":
            raise_now()
        if trial.rank == 1 and where == "in backward":
            trial.ddp.module.weights[0].register_hook(raise_now)
        value.backward()
        return value

    return closure


def raises_in_closures(rank: int, world_size: int, gradients: str) -> None:
    everywhere = ["before forward", "before backward", "in backward"]
    # Without shared memory buckets that are under way cannot be called back.
    for where in everywhere if ranks.share_memory() else everywhere[2:]:
        trial = Trial(Bowl(SMALL), optim.SGD, gradients=gradients, lr=0.1)
        trial.train(range(2))
        if rank == 1:
            with pytest.raises(Wanted, match=where):
                trial.sharded.step(raises(where, trial, 2))
            trial.model.weights[0]._backward_hooks = None
        else:
            with pytest.raises(farandole.Error, match="rank 1"):
                trial.sharded.step(raises(where, trial, 2))
        assert_same_everywhere(trial.model, where)
        trial.zero_grad()
        trial.train(range(3, 6))
        trial.check(where)


# Clips and passes that are not synchronized.


def clips_differ(rank: int, world_size: int, gradients: str) -> None:
    trial = Trial(Bowl(SMALL), optim.SGD, gradients=gradients, lr=0.1)
    trial.train(range(2))
    trial.zero_grad()
    trial.backward(2)
    if rank == 1:
        trial.sharded.clip_grad_value_(0.01)
    if gradients == "full":
        return  # p.grad is there, for the program to look after
    with pytest.raises(farandole.StepError, match=r"gradients clipped at 0\.01"):
        trial.sharded.step()
    trial.check("nothing was changed")
    if rank != 1:
        trial.sharded.clip_grad_value_(0.01)
    if trial.is_watched:
        nn.utils.clip_grad_value_(trial.alone.parameters(), 0.01)
    trial.step()
    trial.check("clipped everywhere")


def clips_of_newcomers(rank: int, world_size: int, gradients: str) -> None:
    """The first clip sees the average of a layer that nobody owns yet."""
    for with_gaps in (False, True):
        model = partly_frozen(FLOATS)
        if with_gaps:
            values = model.weights[0].detach().repeat_interleave(2, 1)
            model.weights[0] = nn.Parameter(values[:, ::2], requires_grad=False)
        trial = Trial(model, optim.AdamW, gradients=gradients, lr=0.1)
        trial.train(range(2))
        unfreeze(trial)
        for step in range(2, 4):
            trial.zero_grad()
            trial.backward(step)
            norm = trial.sharded.clip_grad_norm_(0.5)
            if trial.is_watched:
                wanted = nn.utils.clip_grad_norm_(trial.alone.parameters(), 0.5)
                check_close(norm, wanted, "norm", torch.float32)
            trial.step()
            trial.check(f"clipped, with gaps: {with_gaps}")


def newcomers_with_gaps(rank: int, world_size: int, gradients: str) -> None:
    for kind in (optim.SGD, optim.RMSprop):
        model = partly_frozen()
        values = torch.randn(3, 14, generator=torch.Generator().manual_seed(3))
        model.weights[0] = nn.Parameter(values[:, ::2].t(), requires_grad=False)
        trial = Trial(model, kind, gradients=gradients, lr=0.1)
        trial.train(range(1))
        unfreeze(trial)
        trial.requires_grad_has_changed()
        trial.train(range(1, 4))
        trial.check(f"{kind.__name__} of a parameter with gaps")


def weights_without_sync(rank: int, world_size: int, gradients: str) -> None:
    """With "shard" the pass that tells the ranks of loss weights must be the last."""
    trial = Trial(Bowl(SMALL), optim.SGD, gradients=gradients, lr=0.1)
    assert trial.ddp is not None
    for step in range(2):
        trial.zero_grad()
        trial.ddp.set_loss_weight(5.0)
        trial.backward(step)
        trial.step()
    trial.zero_grad()
    trial.sharded.wait()
    before = [p.detach().clone() for p in trial.model.parameters()]
    trial.ddp.set_loss_weight(100.0)
    with trial.ddp.no_sync():
        loss(trial.ddp, rank, 2).backward()
    if gradients == "shard":
        with pytest.raises(InvalidArgument, match=r"ran under no_sync\(\)"):
            trial.sharded.step()
        assert all(map(torch.equal, trial.model.parameters(), before))
    trial.zero_grad()
    trial.ddp.set_loss_weight(3.0)
    trial.backward(3)
    trial.step()
    trial.check("after a pass alone")


# Two optimizers, and state that comes before or after.


def taken_over(rank: int, world_size: int, gradients: str) -> None:
    """A new optimizer while one with "shard" is still alive."""
    trial = Trial(Bowl(SMALL), optim.SGD, gradients="shard", lr=0.1)
    trial.train(range(2))
    old = trial.sharded
    old.wait()
    trial.sharded = ZeroRedundancyOptimizer(
        trial.model.parameters(),
        optim.SGD,
        gradients=gradients,  # type: ignore[arg-type]
        lr=0.1,
    )
    trial.train(range(2, 5))
    trial.check("the newer one")
    with pytest.raises(InvalidArgument, match="another optimizer was made"):
        old.step()
    del old
    trial.train(range(5, 7))
    trial.check("the newer one alone")


def loads_before_shards(rank: int, world_size: int, gradients: str) -> None:
    """State of a layer that is unfrozen when the optimizer has not yet seen a gradient of it."""
    for kind in (optim.AdamW, optim.RMSprop):
        wanted = Bowl(SMALL)
        trained = kind(wanted.parameters(), lr=0.05)
        for _ in range(3):
            trained.zero_grad()
            loss(wanted, 0, 9).backward()
            trained.step()
        model = partly_frozen()
        model.load_state_dict(wanted.state_dict())
        trial = Trial(model, kind, gradients=gradients, lr=0.05)
        unfreeze(trial)
        for optimizer in trial.optimizers:
            optimizer.load_state_dict(trained.state_dict())
        trial.train(range(3))
        trial.check(kind.__name__)


# Steps that fail in Python.


class Broken(optim.RMSprop):
    """Raises where it is told to."""

    where = ""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        if self.where == "make":
            raise Wanted("make")
        super().__init__(params, lr=lr)

    def step(self, closure: Any = None) -> None:
        if self.where == "step":
            raise Wanted("step")
        super().step()


def fails(trial: Trial, step: int, where: str) -> None:
    """A step that fails on rank 1 in Broken."""
    trial.zero_grad()
    trial.backward(step)
    Broken.where = where if trial.rank == 1 else ""
    if trial.rank == 1:
        with pytest.raises(Wanted, match=where):
            trial.sharded.step()
    else:
        with pytest.raises(farandole.StepError, match=f"rank 1[\\s\\S]*{where}"):
            trial.sharded.step()
    Broken.where = ""
    trial.sharded.wait()
    assert_same_everywhere(trial.model, where)


def inner_steps_fail(rank: int, world_size: int, gradients: str) -> None:
    """What failed in the first step is missing, and shards that came then are not."""
    trial = Trial(partly_frozen(), optim.RMSprop, gradients=gradients)
    trial.sharded = ZeroRedundancyOptimizer(
        trial.model.parameters(),
        Broken,
        gradients=gradients,  # type: ignore[arg-type]
        element_wise=True,
    )
    fails(trial, 0, "step")
    trial.sharded.consolidate_state_dict()
    if rank == 0:
        states = trial.sharded.state_dict()["state"]
        assert all(state["square_avg"].shape == SMALL[i][0] for i, state in states.items())
    unfreeze(trial)
    trial.requires_grad_has_changed()
    if gradients == "full" or ranks.share_memory():  # else there is no newcomer
        fails(trial, 1, "make")
        trial.sharded.consolidate_state_dict()
    before = [p.detach().clone() for p in trial.model.parameters()]
    trial.zero_grad()
    trial.backward(2)
    trial.sharded.step()
    trial.sharded.wait()
    for p, old in zip(trial.model.parameters(), before, strict=True):
        assert (p != old).all()
    assert_same_everywhere(trial.model)


class Unprintable(str):
    def __repr__(self) -> str:
        raise Wanted("repr")


def hyperparameters_raise(rank: int, world_size: int, gradients: str) -> None:
    trial = Trial(Bowl(SMALL), optim.RMSprop, gradients=gradients, lr=0.1)
    trial.train(range(1))
    trial.zero_grad()
    trial.backward(1)
    (group,) = trial.sharded.param_groups
    if rank == 1:
        group["lr"] = Unprintable()
        with pytest.raises(Wanted, match="repr"):
            trial.sharded.step()
        group["lr"] = 0.1
    else:
        with pytest.raises(farandole.StepError, match=r"rank 1[\s\S]*repr"):
            trial.sharded.step()
    trial.step()
    trial.check("after it")


EVERYWHERE = [
    added_in_vain,
    raises_in_closures,
    clips_differ,
    newcomers_with_gaps,
    weights_without_sync,
    taken_over,
    loads_before_shards,
    inner_steps_fail,
    hyperparameters_raise,
]
# Over other groups gradients of "shard" travel in buckets that are planned when it is made.
IN_SHARED_MEMORY = [shared_memory, added_between, clips_of_newcomers]


def misuse(rank: int, world_size: int, gradients: str) -> None:
    is_shared = ranks.share_memory()
    for check in [*EVERYWHERE, *IN_SHARED_MEMORY] if is_shared else [hooked, *EVERYWHERE]:
        check(rank, world_size, gradients)


@pytest.mark.parametrize("gradients", MODES)
@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_what_is_refused_leaves_the_rest_as_it_was(backend: str, gradients: str) -> None:
    ranks.run(misuse, 2, gradients, setup=ranks.Setup(backend=backend, timeout_s=15))


def test_a_closure_that_raises_on_one_of_three() -> None:
    ranks.run(raises_in_closures, 3, "shard")
