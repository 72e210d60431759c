# SPDX-License-Identifier: Apache-2.0
"""Backward passes of all sorts through farandole.DistributedDataParallel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel
from farandole.ddp.outputs import find_tensors
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ranks
import sim
from ddp_models import Experts, Layers
from ddp_oracle import (
    assert_gradients,
    batch,
    check_steps,
    expected,
    gradients,
    seeded,
)


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return square(model(batch(rank, step, 4, 8)))


def wrapped(make: Callable[[], nn.Module] = Layers, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(seeded(make), **options)


def gradients_are_set_to_none_or_zero() -> None:
    for set_to_none in (True, False):
        check_steps(wrapped(), plain_loss, set_to_none=set_to_none)
        check_steps(wrapped(static_graph=True), plain_loss, set_to_none=set_to_none)
        check_steps(
            wrapped(Experts, find_unused_parameters=True),
            lambda model, rank, step: square(model(batch(rank, step, 4, 8), rank % 2).mixed),
            set_to_none=set_to_none,
        )


def no_sync_adds_up() -> None:
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    alone = copy.deepcopy(ddp.module)
    for step in range(0, 9, 3):
        wanted = expected(
            alone,
            world_size,
            lambda model, r, s: sum(
                (plain_loss(model, r, s + turn) for turn in range(3)), torch.zeros(())
            ),
            step,
        )
        ddp.zero_grad()
        with ddp.no_sync():
            for turn in range(2):
                plain_loss(ddp, rank, step + turn).backward()
        assert ddp.require_backward_grad_sync
        plain_loss(ddp, rank, step + 2).backward()
        assert_gradients(ddp, wanted)
    ddp.zero_grad()
    with ddp.no_sync():  # alone: nothing is sent
        plain_loss(ddp, rank, 0).backward()
    own = expected(alone, 1, lambda model, r, s: plain_loss(model, rank, s), 0)
    for name, gradient in gradients(ddp).items():
        assert torch.equal(gradient, own[name])  # type: ignore[arg-type]


def forward_says_whether_backward_is_synchronized() -> None:
    """The passes may be interleaved: two forwards, one or two backwards."""
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    alone = copy.deepcopy(ddp.module)

    def both(model: nn.Module, r: int, step: int) -> Tensor:
        return plain_loss(model, r, step) + plain_loss(model, r, step + 1)

    for step in range(3):
        wanted = expected(alone, world_size, both, step)
        ddp.zero_grad()
        both(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)
        ddp.zero_grad()
        with ddp.no_sync():
            local = plain_loss(ddp, rank, step)
        synchronized = plain_loss(ddp, rank, step + 1)
        local.backward()
        synchronized.backward()
        assert_gradients(ddp, wanted)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, last: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)
        )
        self.head = nn.Linear(8, 8)
        self.reentrant, self.last = reentrant, last

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return checkpoint(self.head, x, use_reentrant=self.reentrant) if self.last else self.head(x)


def checkpoints() -> None:
    for reentrant in (True, False):
        for last in (True, False):
            for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
                ddp = wrapped(
                    lambda reentrant=reentrant, last=last: Checkpointed(reentrant, last),
                    bucket_cap_mb=0.0005,
                    **options,
                )
                check_steps(ddp, plain_loss)


class Shared(nn.Module):
    """A block that is checkpointed twice in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True).tanh()
        return self.head(x)


def checkpoints_of_a_shared_block() -> None:
    check_steps(wrapped(Shared, bucket_cap_mb=0.0001), plain_loss)
    check_steps(wrapped(Shared, static_graph=True, bucket_cap_mb=0.0001), plain_loss)


def gradient_penalty() -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        x = batch(rank, step, 4, 8).requires_grad_()
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return square(output) + (slope.norm(2, 1) - 1).square().mean()

    check_steps(wrapped(find_unused_parameters=True), loss)  # the last bias: no second derivative
    check_steps(wrapped(), loss)


def autograd_grad_alone_sends_nothing() -> None:
    ddp, rank = wrapped(), dist.get_rank()
    for step in range(3):
        if rank == 0:
            parameters = list(ddp.parameters())
            found = torch.autograd.grad(plain_loss(ddp.module, rank, step), parameters)
            assert all(gradient is not None for gradient in found)
        wanted = expected(ddp.module, dist.get_world_size(), plain_loss, step)
        ddp.zero_grad()
        plain_loss(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)


def a_graph_twice() -> None:
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    for step in range(3):
        wanted = expected(ddp.module, world_size, plain_loss, step)
        ddp.zero_grad()
        loss = plain_loss(ddp, rank, step)
        loss.backward(retain_graph=True)
        assert_gradients(ddp, wanted)
        loss.backward()  # adds this rank's to the mean, and takes the mean of that
        assert_gradients(ddp, {name: 2 * g for name, g in wanted.items() if g is not None})


def gradients_set_by_hand() -> None:
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    for step in range(3):
        wanted = expected(ddp.module, world_size, plain_loss, step)
        for number, parameter in enumerate(ddp.parameters()):
            parameter.grad = torch.full_like(parameter, number)
        plain_loss(ddp, rank, step).backward()
        for number, (name, gradient) in enumerate(wanted.items()):
            assert gradient is not None
            wanted[name] = gradient + number
        assert_gradients(ddp, wanted)
        for parameter in ddp.parameters():
            parameter.grad = None if step == 1 else torch.zeros_like(parameter)


def hooks_on_gradients() -> None:
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    alone = copy.deepcopy(ddp.module)
    seen: list[str] = []
    for name, parameter in ddp.module.named_parameters():
        parameter.register_hook(lambda gradient: gradient * 3)
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: seen.append(name))
    for step in range(3):
        wanted = expected(alone, world_size, plain_loss, step)
        ddp.zero_grad()
        seen.clear()
        plain_loss(ddp, rank, step).backward()
        assert_gradients(ddp, {name: 3 * g for name, g in wanted.items() if g is not None})
        assert sorted(seen) == sorted(wanted)


def parts_are_frozen_and_thawed() -> None:
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    first = ddp.module[0]
    for step in range(6):
        first.requires_grad_(step not in (2, 3))
        wanted = expected(ddp.module, world_size, plain_loss, step)
        ddp.zero_grad()
        plain_loss(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)


def dtype_changes_after_wrapping() -> None:
    ddp, rank = DistributedDataParallel(Layers()), dist.get_rank()
    x = batch(rank, 0, 4, 8)
    for step in range(6):
        dtype = (torch.float32, torch.bfloat16, torch.float64)[step // 2]
        ddp.to(dtype)
        ddp.zero_grad()
        square(ddp(x.to(dtype))).backward()
        for name, parameter in ddp.named_parameters():
            gradient = parameter.grad
            assert gradient is not None
            assert gradient.dtype == dtype, name
    wanted = expected(ddp.module, dist.get_world_size(), plain_loss, 0)
    assert_gradients(ddp, wanted)
    ddp.half().double()  # there and back
    check_steps(ddp, plain_loss)


class Nested(nn.Module):
    """Returns what find_tensors() has to look into."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()
        self.kind = 0

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x)
        return [
            {"a": [None, {"b": (y,)}]},
            SimpleNamespace(y=y, other="text"),
            (y[:, 0], y[:, 1], y[:, 2]),
            y.unbind(1),
            (column for column in [y]),
        ][self.kind]


def outputs_of_all_kinds() -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        module = model.module if isinstance(model, DistributedDataParallel) else model
        module.kind = step % 4  # type: ignore[assignment]
        out = model(batch(rank, step, 4, 8))
        if step % 4 == 0:
            return square(out["a"][1]["b"][0])
        if step % 4 == 1:
            return square(out.y)
        return square(torch.stack(list(out)))

    check_steps(wrapped(Nested), loss, steps=8)


def outputs_are_changed_in_place() -> None:
    class View(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).squeeze(-1)

    def scaled(model: nn.Module, rank: int, step: int) -> Tensor:
        output = model(batch(rank, step, 4, 8))
        output *= 2
        output += 1
        return output.sum()

    def clipped(model: nn.Module, rank: int, step: int) -> Tensor:
        output = model(batch(rank, step, 4, 8))
        output.add_(1)
        output[0] = 3
        return torch.relu_(output).sum()

    for loss in (scaled, clipped):
        check_steps(wrapped(View), loss)
        check_steps(wrapped(), loss)


class Aside(nn.Module):
    """Keeps the loss as an attribute and returns nothing to differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()
        self.loss = torch.zeros(())

    def forward(self, x: Tensor) -> str:
        self.loss = square(self.layers(x))
        return "done"


def losses_that_are_not_returned() -> None:
    ddp, rank, world_size = wrapped(Aside), dist.get_rank(), dist.get_world_size()
    alone = copy.deepcopy(ddp.module.layers)
    for step in range(3):
        wanted = expected(alone, world_size, plain_loss, step)
        ddp.zero_grad()
        assert ddp(batch(rank, step, 4, 8)) == "done"
        ddp.module.loss.backward()
        assert_gradients(ddp, {f"layers.{name}": g for name, g in wanted.items()})


class Beside(Aside):
    """Keeps the loss as an attribute and returns a tensor that has no part in it."""

    def forward(self, x: Tensor) -> Any:
        output = self.layers(x)
        self.loss = square(output)
        return output.sigmoid()


def losses_beside_what_is_returned() -> None:
    def check(ddp: DistributedDataParallel, step: int, passes: int) -> None:
        def loss(model: nn.Module, rank: int, step: int) -> Tensor:
            terms = [plain_loss(model, rank, step + i) for i in range(passes)]
            return torch.stack(terms).sum()

        wanted = expected(alone, dist.get_world_size(), loss, step)
        ddp.zero_grad()
        for i in range(passes):
            ddp(batch(dist.get_rank(), step + i, 4, 8))
            ddp.module.loss.backward()
        assert_gradients(ddp, {f"layers.{name}": gradient for name, gradient in wanted.items()})

    alone = seeded(Layers)
    for make in (Aside, Beside):
        for passes in (1, 2):
            ddp = wrapped(make, gradient_accumulation_steps=passes)
            ddp.module.layers.load_state_dict(alone.state_dict())
            for step in range(0, 3 * passes, passes):
                check(ddp, step, passes)


class Link:
    """One of a chain, as of a parse tree."""

    def __init__(self, value: object, rest: object) -> None:
        self.value, self.rest = value, rest


class Lazy(dict[str, object]):
    """A mapping that a search must not open by its own methods."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    values = __iter__ = __len__ = __getattribute__  # type: ignore[assignment]


@dataclass(slots=True)
class Slots:
    output: Tensor
    unset: object = field(init=False)


def outputs_that_are_searched_in_bounds() -> None:
    """Deep, wide and lazy outputs neither fail, nor run code, nor hide tensors near their top."""
    tensor = torch.zeros(1)
    chain: object = None
    for _ in range(5000):
        chain = Link(tensor, chain)
    found = find_tensors((chain, tensor))
    assert 1 < len(found) < 2048
    wide = {"ids": list(range(100_000)), "rows": [[j] * 500 for j in range(600)], "loss": (tensor,)}
    assert find_tensors(wide) == [tensor]
    assert find_tensors([Lazy(a=tensor), torch, nn.Linear(1, 1), Lazy, print]) == [tensor]
    assert find_tensors(Slots(tensor)) == [tensor]
    assert find_tensors({"loss": tensor, "self": [chain]})[0] is tensor
    ring: list[object] = [tensor]
    ring.append(ring)
    assert find_tensors(ring) == [tensor]


class Deep(nn.Module):
    """Returns its output below more than the search looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()

    def forward(self, x: Tensor) -> Any:
        result: object = self.layers(x)
        for _ in range(3000):
            result = Link(0, result)
        return result


def outputs_that_are_not_found() -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        result = model(batch(rank, step, 4, 8))
        while isinstance(result, Link):
            result = result.rest
        return square(result)

    check_steps(wrapped(Deep), loss)


def evaluation_between_steps() -> None:
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    for step in range(3):
        with torch.no_grad():
            ddp.eval()
            ddp(batch(rank, step, 4, 8))
            ddp.train()
        ddp(batch(rank, step, 4, 8))  # without a backward
        wanted = expected(ddp.module, world_size, plain_loss, step)
        ddp.zero_grad()
        plain_loss(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)


CHECKS = [
    gradients_are_set_to_none_or_zero,
    no_sync_adds_up,
    forward_says_whether_backward_is_synchronized,
    checkpoints,
    checkpoints_of_a_shared_block,
    gradient_penalty,
    autograd_grad_alone_sends_nothing,
    a_graph_twice,
    gradients_set_by_hand,
    hooks_on_gradients,
    parts_are_frozen_and_thawed,
    dtype_changes_after_wrapping,
    outputs_of_all_kinds,
    outputs_are_changed_in_place,
    losses_that_are_not_returned,
    losses_beside_what_is_returned,
    outputs_that_are_searched_in_bounds,
    outputs_that_are_not_found,
    evaluation_between_steps,
]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check()


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("lazy")])
def test_backward(backend: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend=backend))
