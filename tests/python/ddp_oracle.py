# SPDX-License-Identifier: Apache-2.0
"""What gradients should be: the mean of those that one process gets from each rank's batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

Loss = Callable[[nn.Module, int, int], Tensor]
"""Of a model, a rank and a step."""


def batch(rank: int, step: int, *shape: int) -> Tensor:
    """The numbers of one rank in one step, the same wherever they are asked for."""
    generator = torch.Generator("cpu").manual_seed(1000 * step + rank)
    numbers = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return numbers.to(torch.get_default_device())


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """The same model on each rank, in float64, so that tolerances can be small."""
    torch.manual_seed(0)
    return make().double()


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """A copy of each gradient, dense."""
    found: dict[str, Tensor | None] = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is not None:
            gradient = gradient.to_dense() if gradient.is_sparse else gradient.detach().clone()
        found[name.removeprefix("module.").replace("_orig_mod.", "")] = gradient
    return found


def expected(model: nn.Module, world_size: int, loss: Loss, step: int) -> dict[str, Tensor | None]:
    """The mean of what the batches of all ranks give in this process."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for rank in range(world_size):
        loss(alone, rank, step).backward()
    return {
        name: None if gradient is None else gradient / world_size
        for name, gradient in gradients(alone).items()
    }


def assert_gradients(model: nn.Module, wanted: dict[str, Tensor | None]) -> None:
    found = gradients(model)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        own = found[name]
        if gradient is None or own is None:
            assert own is gradient, f"{name}: {own} instead of {gradient}"
        else:
            assert own.device == gradient.device, name
            # On the host, as each comparison starts some 20 operators.
            torch.testing.assert_close(own.cpu(), gradient.cpu(), rtol=1e-9, atol=1e-12, msg=name)
        if own is not None:
            assert_alike(own, name)


def assert_alike(tensor: Tensor, name: str = "") -> None:
    """Every rank has the same bits."""
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor.contiguous())
    assert all(torch.equal(tensor, other) for other in everyone), name


def check_steps(ddp: nn.Module, loss: Loss, steps: int = 3, set_to_none: bool = True) -> None:
    """Compares the gradients of several steps; the second plans no more."""
    model = ddp.module
    assert isinstance(model, nn.Module)
    for step in range(steps):
        wanted = expected(model, dist.get_world_size(), loss, step)
        ddp.zero_grad(set_to_none=set_to_none)
        loss(ddp, dist.get_rank(), step).backward()
        if not set_to_none:  # what had a gradient once has zeros
            had = gradients(ddp)
            for name, gradient in wanted.items():
                if gradient is None and had[name] is not None:
                    wanted[name] = torch.zeros_like(had[name])
        assert_gradients(ddp, wanted)
