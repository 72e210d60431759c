# SPDX-License-Identifier: Apache-2.0
"""Who may hold the memory of a gradient: other wrapped models, and the program.

The library reduces gradients in memory of its own, which p.grad shows. What a program keeps of it
does not change, and memory that the program laid out itself gets the averages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import farandole
import numpy as np
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel
from torch import Tensor, nn
from torch.nn.parameter import Parameter

import ranks
import sim
from ddp_oracle import assert_gradients, batch, expected, seeded

WIDTH = 64  # a float64 weight of WIDTH x WIDTH is computed in its slot


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)
    )


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return square(model(batch(rank, step, 4, 8)))


def wrapped(make: Callable[[], nn.Module] = layers, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(seeded(make), **options)


class Head(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(WIDTH, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).tanh())


class Both(nn.Module):
    """Two models with one encoder, each wrapped by `wrap`."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)).double()
        self.actor, self.critic = wrap(Head(encoder)), wrap(Head(encoder))


def not_wrapped(module: nn.Module) -> nn.Module:
    return module


def gradients_by_parameter(model: nn.Module) -> dict[str, Tensor | None]:
    return {
        name.replace("module.", ""): None if each.grad is None else each.grad.detach().clone()
        for name, each in model.named_parameters()
    }


def check_both(both: Both, alone: Both, losses: list[Callable[[Both, int], Tensor]]) -> None:
    """One backward for each of the losses, which are of a rank's number."""
    world_size = dist.get_world_size()
    both.zero_grad()
    alone.zero_grad()
    for own in [loss(both, dist.get_rank()) for loss in losses]:  # after all forward passes
        own.backward()
    for loss in losses:
        for rank in range(world_size):
            (loss(alone, rank) / world_size).backward()
    wanted = gradients_by_parameter(alone)
    found = gradients_by_parameter(both)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        own = found[name]
        if gradient is None or own is None:
            assert own is gradient, name
        else:
            torch.testing.assert_close(own.cpu(), gradient.cpu(), rtol=1e-9, atol=1e-12, msg=name)


def two_wrappers_of_one_encoder() -> None:
    for options in ({}, {"static_graph": True}, {"bucket_cap_mb": 0.0005}):
        both = Both(lambda module, options=options: DistributedDataParallel(module, **options))
        alone = Both(not_wrapped)
        for step in range(6):

            def actor(models: Both, rank: int, step: int = step) -> Tensor:
                return square(models.actor(batch(rank, step, 4, 8)))

            def critic(models: Both, rank: int, step: int = step) -> Tensor:
                return square(models.critic(batch(rank, step + 1, 3, 8)))

            def joint(models: Both, rank: int) -> Tensor:
                return actor(models, rank) + critic(models, rank)

            check_both(both, alone, [critic])  # which has buckets before the actor
            check_both(both, alone, [joint])
            check_both(both, alone, [actor, critic])
            check_both(both, alone, [critic])
            check_both(both, alone, [joint])
            check_both(both, alone, [actor])


def a_second_wrapper_comes_and_goes() -> None:
    model = seeded(layers)
    alone = copy.deepcopy(model)
    first = DistributedDataParallel(model)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(9):
        second = DistributedDataParallel(model) if step % 3 == 1 else None
        wanted = expected(alone, world_size, plain_loss, step)
        for each in (first, second):
            if each is None:
                continue
            first.zero_grad()
            plain_loss(each, rank, step).backward()
            assert_gradients(first, wanted)


class Inner(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part = wrap(nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)).double())
        self.head = nn.Linear(WIDTH, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.part(x).tanh())


def a_wrapper_inside_a_wrapper() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    outer = DistributedDataParallel(Inner(DistributedDataParallel))
    alone = Inner(not_wrapped)
    for step in range(4):
        wanted = expected(alone, world_size, plain_loss, step)
        outer.zero_grad()
        plain_loss(outer, rank, step).backward()
        found = gradients_by_parameter(outer)
        for name, gradient in wanted.items():
            assert gradient is not None
            own = found[name]
            assert own is not None
            torch.testing.assert_close(own.cpu(), gradient.cpu(), rtol=1e-9, atol=1e-12, msg=name)


def loss_weights_of_two_wrappers_are_refused() -> None:
    both = Both(DistributedDataParallel)
    both.actor.set_loss_weight(3)  # type: ignore[operator]
    with pytest.raises(farandole.InvalidArgument, match=r"weighted-shared-parameter"):
        square(both.actor(batch(dist.get_rank(), 0, 4, 8))).backward()


HOLDERS: dict[str, Callable[[Parameter], Any]] = {
    "tensor": lambda parameter: parameter.grad,
    "detached": lambda parameter: parameter.grad.detach(),  # type: ignore[union-attr]
    "view": lambda parameter: parameter.grad.flatten()[1:],  # type: ignore[union-attr]
    "storage": lambda parameter: parameter.grad.untyped_storage(),  # type: ignore[union-attr]
}
MEMORY_HOLDERS: dict[str, Callable[[Parameter], Any]] = {
    "numpy": lambda parameter: parameter.grad.numpy(),  # type: ignore[union-attr]
    "dlpack": lambda parameter: np.from_dlpack(parameter.grad),  # type: ignore[arg-type]
}


def values_of(kept: Any) -> Any:
    if isinstance(kept, Tensor):
        return kept.detach().cpu().tolist()
    if isinstance(kept, torch.UntypedStorage):
        return bytes(kept.cpu().tolist())
    return kept.tolist()


def holders() -> dict[str, Callable[[Parameter], Any]]:
    return {**HOLDERS, **MEMORY_HOLDERS} if ranks.share_memory() else HOLDERS


def kept_gradients_do_not_change() -> None:
    """Of the last three steps, in each way of the program to go on."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for name, hold in holders().items():
        ddp = wrapped(find_unused_parameters=name == "detached", static_graph=name == "view")
        kept: list[tuple[Any, Any]] = []
        for step in range(8):
            wanted = expected(ddp.module, world_size, plain_loss, step)
            ddp.zero_grad()
            with ddp.no_sync() if step == 5 else nullcontext():
                plain_loss(ddp, rank, step).backward()
            if step != 5:
                assert_gradients(ddp, wanted)
            for memory, values in kept:
                assert values_of(memory) == values, (name, step)
            now = [hold(parameter) for parameter in ddp.parameters()]
            kept = kept[-12:] + [(memory, values_of(memory)) for memory in now]


def gradients_kept_over_other_plans_do_not_change() -> None:
    """Of a generator, while the discriminator trains, and after it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for name, hold in holders().items():
        ddp = wrapped()
        first, last = ddp.module[0], ddp.module[4]
        kept: list[tuple[Any, Any]] = []
        for step in range(8):
            first.requires_grad_(step % 2 == 0)
            last.requires_grad_(step % 2 == 1)
            wanted = expected(ddp.module, world_size, plain_loss, step)
            ddp.zero_grad()
            plain_loss(ddp, rank, step).backward()
            assert_gradients(ddp, wanted)
            for memory, values in kept:
                assert values_of(memory) == values, (name, step)
            held = (first if step % 2 == 0 else last).parameters()
            now = [hold(parameter) for parameter in held]
            kept = kept[-6:] + [(memory, values_of(memory)) for memory in now]


def kept_gradients_come_back() -> None:
    """As in surgery on the gradients of several losses."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = wrapped()
    for step in range(0, 6, 2):
        wanted = expected(
            ddp.module,
            world_size,
            lambda model, r, s: plain_loss(model, r, s) + plain_loss(model, r, s + 1),
            step,
        )
        ddp.zero_grad()
        plain_loss(ddp, rank, step).backward()
        first = [parameter.grad for parameter in ddp.parameters()]
        ddp.zero_grad()
        plain_loss(ddp, rank, step + 1).backward()
        for parameter, own in zip(ddp.parameters(), first, strict=True):
            assert own is not None
            own.add_(parameter.grad)
            parameter.grad = own
        assert_gradients(ddp, wanted)


def lay_out_flat(model: nn.Module) -> Tensor:
    """All gradients as views of one vector."""
    parameters = list(model.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters), dtype=torch.float64)
    for parameter, part in zip(
        parameters, flat.split([each.numel() for each in parameters]), strict=True
    ):
        parameter.grad = part.view_as(parameter)
    return flat


def in_one_vector(wanted: dict[str, Tensor | None]) -> Tensor:
    return torch.cat([each.flatten() for each in wanted.values() if each is not None])


def gradients_are_views_of_one_vector() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        ddp = wrapped(**options)
        flat = lay_out_flat(ddp.module)
        for step in range(5):
            turns = 2 if step == 3 else 1

            def loss(model: nn.Module, r: int, s: int, turns: int = turns) -> Tensor:
                return sum((plain_loss(model, r, s + t) for t in range(turns)), torch.zeros(()))

            wanted = in_one_vector(expected(ddp.module, world_size, loss, step))
            flat.zero_()
            for turn in range(turns):
                last = turn == turns - 1
                context: AbstractContextManager[Any] = nullcontext() if last else ddp.no_sync()
                with context:
                    plain_loss(ddp, rank, step + turn).backward()
            torch.testing.assert_close(flat.cpu(), wanted.cpu(), rtol=1e-9, atol=1e-12)
            flat.mul_(0.5)
            own = torch.cat([each.grad.flatten() for each in ddp.parameters()])  # type: ignore[union-attr]
            assert torch.equal(own, flat)


def only_some_ranks_lay_out_their_gradients() -> None:
    """And use some of their parameters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = wrapped(find_unused_parameters=True)
    flat = lay_out_flat(ddp.module) if rank == 1 else None

    def loss(model: nn.Module, r: int, step: int) -> Tensor:
        x = batch(r, step, 4, 8)
        return square(model(x)) if r == 0 else square(model(x)) * 0 + x.sum()

    for step in range(4):
        wanted = expected(ddp.module, world_size, loss, step)
        if flat is None:
            ddp.zero_grad()
        else:
            flat.zero_()
        loss(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)
        if flat is not None:
            averages = in_one_vector(wanted).cpu()
            torch.testing.assert_close(flat.cpu(), averages, rtol=1e-9, atol=1e-12)


def penalty_of(model: nn.Module) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for parameter in model.parameters():
        assert parameter.grad is not None
        total = total + parameter.grad.square().sum()
    return total


def gradients_with_a_graph() -> None:
    """The penalty is of the average, and its gradient is that of one process."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = wrapped()
    alone = copy.deepcopy(ddp.module)
    for step in range(4):
        alone.zero_grad()
        sum((plain_loss(alone, r, step) for r in range(world_size)), torch.zeros(())).div(
            world_size
        ).backward(create_graph=True)
        (0.5 * penalty_of(alone)).backward()
        wanted = gradients_by_parameter(alone)
        ddp.zero_grad()
        plain_loss(ddp, rank, step).backward(create_graph=True)
        penalty = penalty_of(ddp)
        assert penalty.requires_grad
        with torch.no_grad():  # the same on each rank: averages
            everyone = [torch.empty_like(penalty) for _ in range(world_size)]
            dist.all_gather(everyone, penalty.detach())
            assert all(torch.equal(each, penalty) for each in everyone)
        (plain_loss(ddp, rank, step) * 0 + 0.5 * penalty).backward()
        assert_gradients(ddp, wanted)
    for parameter in ddp.parameters():
        parameter.grad = None  # or the graph and its model would keep each other


CHECKS = [
    two_wrappers_of_one_encoder,
    a_second_wrapper_comes_and_goes,
    a_wrapper_inside_a_wrapper,
    loss_weights_of_two_wrappers_are_refused,
    kept_gradients_do_not_change,
    gradients_kept_over_other_plans_do_not_change,
    kept_gradients_come_back,
    gradients_are_views_of_one_vector,
    only_some_ranks_lay_out_their_gradients,
    gradients_with_a_graph,
]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check()


class Scalars(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.scalars = nn.ParameterList([nn.Parameter(torch.zeros(())) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        return (torch.stack(tuple(self.scalars)) * x).sum()


def keep_many(rank: int, world_size: int) -> None:
    ddp = wrapped(lambda: Scalars(4000))
    kept = []
    for step in range(20):  # 80,000 gradients; a process may have 65,530 mappings
        ddp.zero_grad()
        ddp(torch.tensor(float(step + rank))).backward()
        kept.append([each.grad for each in ddp.parameters()])
    mean = sum(range(world_size)) / world_size
    for step, gradients in enumerate(kept):
        assert all(each is not None and float(each) == step + mean for each in gradients)


def test_more_gradients_are_kept_than_a_process_may_have_mappings() -> None:
    ranks.run(keep_many, 2)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("lazy")])
def test_gradients_that_others_hold(backend: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend=backend))
