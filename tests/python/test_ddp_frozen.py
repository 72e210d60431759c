# SPDX-License-Identifier: Apache-2.0
"""Programs that freeze and unfreeze parameters: each set of active ones keeps its plan."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from farandole import BackwardError, DistributedDataParallel, MismatchError
from torch import Tensor, nn

import ranks
import sim
from ddp_models import Layers
from ddp_oracle import assert_alike, assert_gradients, batch, expected, seeded


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 128), nn.Tanh())
        self.append(nn.Linear(128, 8))


class Discriminator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh())
        self.append(nn.Linear(64, 1))


class Both(nn.Module):
    """A GAN in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = Generator()
        self.discriminator = Discriminator()

    def forward(self, noise: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            return -self.discriminator(self.generator(noise)).mean()
        with torch.no_grad():
            fake = self.generator(noise)
        return self.discriminator(fake).mean() - self.discriminator(real).mean()


def toggle(module: nn.Module, active: bool) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(active)


def inputs(rank: int, step: int) -> tuple[Tensor, Tensor]:
    return batch(rank, step, 6, 4), batch(rank, step + 1000, 6, 8)


def assert_near(own: Iterable[Tensor], wanted: Iterable[Tensor]) -> None:
    for a, b in zip(own, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert_alike(a.detach())


def gan_in_one_module(rank: int, world_size: int) -> None:
    alone = seeded(Both)
    ddp = DistributedDataParallel(copy.deepcopy(alone), bucket_cap_mb=0.02)
    own, plain = (
        [
            torch.optim.Adam(part.parameters(), lr=1e-2)
            for part in (module.discriminator, module.generator)
        ]
        for module in (ddp.module, alone)
    )
    for step in range(12):
        turn = 0 if step % 3 else 1  # the discriminator twice as often
        for module in (ddp.module, alone):
            toggle(module.discriminator, turn == 0)
            toggle(module.generator, turn == 1)
        own[turn].zero_grad(set_to_none=step % 2 == 0)
        plain[turn].zero_grad()
        noise, real = inputs(rank, step)
        ddp(noise, real if turn == 0 else None).backward()
        for peer in range(world_size):
            noise, real = inputs(peer, step)
            (alone(noise, real if turn == 0 else None) / world_size).backward()
        # What the other step has left stays as it is.
        for name, parameter in ddp.module.named_parameters():
            wanted = alone.get_parameter(name).grad
            assert (wanted is None) == (parameter.grad is None)
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, wanted, rtol=1e-9, atol=1e-12)
        own[turn].step()
        plain[turn].step()
        assert ddp.stats().plans == min(step + 1, 2)
        assert_near(ddp.module.parameters(), alone.parameters())


def gan_of_two_modules(rank: int, world_size: int) -> None:
    """The loop that torch users write: the discriminator is frozen in the generator's step."""
    alone = (seeded(Generator), seeded(Discriminator))
    g, d = (DistributedDataParallel(copy.deepcopy(module)) for module in alone)
    own = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (g, d)]
    plain = [torch.optim.SGD(module.parameters(), lr=0.1) for module in alone]

    def step_of(
        step: int, g: nn.Module, d: nn.Module, opts: list[torch.optim.SGD], who: list[int]
    ) -> None:
        toggle(d, True)
        opts[1].zero_grad()
        for peer in who:
            noise, real = inputs(peer, step)
            ((d(g(noise).detach()).mean() - d(real).mean()) / len(who)).backward()
        opts[1].step()
        toggle(d, False)
        opts[0].zero_grad()
        for peer in who:
            (-d(g(inputs(peer, step)[0])).mean() / len(who)).backward()
        opts[0].step()

    for step in range(8):
        step_of(step, g, d, own, [rank])
        step_of(step, *alone, plain, list(range(world_size)))
        assert_near(
            [*g.parameters(), *d.parameters()], [*alone[0].parameters(), *alone[1].parameters()]
        )
        assert g.stats().plans == 1
        assert d.stats().plans == 1


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(batch(rank, step, 4, 8)).square().mean()


def schedules(rank: int, world_size: int) -> None:
    """Layers thaw one after the other, freeze again, and gradients of frozen ones are kept."""
    for set_to_none, sets in ((True, 2), (False, 2), (True, 3), (False, 3)):
        ddp = DistributedDataParallel(seeded(Layers), bucket_cap_mb=0.0005)
        layers = [ddp.module[i] for i in (0, 2, 4)]
        for step in range(24):
            for number, layer in enumerate(layers):
                toggle(layer, number >= 2 - (step // 2) % sets)
            wanted = expected(ddp.module, world_size, plain_loss, step)
            kept = {
                name: None if p.grad is None else p.grad.clone()
                for name, p in ddp.module.named_parameters()
                if not p.requires_grad
            }
            for parameter in ddp.parameters():
                if parameter.requires_grad and parameter.grad is not None:
                    parameter.grad = None if set_to_none else parameter.grad.zero_()
            plain_loss(ddp, rank, step).backward()
            assert_gradients(ddp, wanted | kept)
        if sets == 2:  # three overlap, and would need more memory than they may have
            assert ddp.stats().plans == 2


def accumulation(rank: int, world_size: int) -> None:
    """Passes under no_sync() add up in the plan of their parameters."""
    ddp = DistributedDataParallel(seeded(Layers))

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return plain_loss(model, rank, step) + plain_loss(model, rank, step + 50)

    for step in range(8):
        toggle(ddp.module[0], step % 2 == 0)
        wanted = expected(ddp.module, world_size, loss, step)
        ddp.zero_grad()
        with ddp.no_sync():
            plain_loss(ddp, rank, step + 50).backward()
        plain_loss(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)
    assert ddp.stats().plans == 2


def many_sets(rank: int, world_size: int) -> None:
    """More than are kept: the oldest plan is dropped, on all ranks."""
    ddp = DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(9))).double())
    for step in range(27):
        for number, layer in enumerate(ddp.module):
            toggle(layer, number == step % 9 or number == 8)
        if rank == 1 and step % 5 == 0:  # a forward that nobody else makes
            toggle(ddp.module, True)
            ddp(batch(rank, step, 4, 8))
            for number, layer in enumerate(ddp.module):
                toggle(layer, number == step % 9 or number == 8)
        wanted = expected(ddp.module, world_size, plain_loss, step)
        ddp.zero_grad()
        plain_loss(ddp, rank, step).backward()
        assert_gradients(ddp, wanted)
    assert ddp.stats().plans == 27


def other_sets(rank: int, world_size: int) -> None:
    """Rank 1 freezes what the others do not; both plans are there."""
    ddp = DistributedDataParallel(seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))))
    for step in range(8):
        wrong = step in (2, 5)
        first = step % 2 == 0
        mine = first != (rank == 1) if wrong else first
        toggle(ddp.module[0], mine)
        toggle(ddp.module[1], not mine)
        ddp.zero_grad()
        if not wrong:
            wanted = expected(ddp.module, world_size, plain_loss, step)
            plain_loss(ddp, rank, step).backward()
            assert_gradients(ddp, wanted)
            continue
        with pytest.raises((MismatchError, BackwardError), match="requires_grad"):
            plain_loss(ddp, rank, step).backward()
    assert ddp.stats().plans == 2


def toggles(rank: int, world_size: int) -> None:
    gan_in_one_module(rank, world_size)
    gan_of_two_modules(rank, world_size)
    schedules(rank, world_size)
    accumulation(rank, world_size)
    many_sets(rank, world_size)
    other_sets(rank, world_size)


@pytest.mark.parametrize(
    ("backend", "world_size"),
    [
        ("farandole", 2),
        ("farandole", 3),
        ("hosts", 2),
        ("gloo", 2),
        pytest.param("sim-slow_side", 2, marks=sim.NEEDS_NCCL),
    ],
)
def test_toggled_parameters(backend: str, world_size: int) -> None:
    ranks.run(toggles, world_size, setup=ranks.Setup(backend=backend))
