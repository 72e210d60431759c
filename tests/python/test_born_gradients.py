# SPDX-License-Identifier: Apache-2.0
"""Gradients that are computed in their buckets are those of one process, whatever a program does.

In each step the batch's size on each rank, accumulation, loss weights, inputs with gradients and
frozen layers change at random. FARANDOLE_TEST_ALL takes 300 steps of each model.
"""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel
from torch import Tensor, nn

import born_models
import ranks

WORLD_SIZE = 2
STEPS = 300 if ranks.WHOLE_MATRIX else 24
DEADLINE_S = 400.0 if ranks.WHOLE_MATRIX else 110.0  # inductor compiles for minutes
IMAGES, LARGE_IMAGES, SEQUENCES, FEATURES = (3, 12, 12), (3, 16, 16), (6, 64), (64,)

pytestmark = pytest.mark.timeout(DEADLINE_S + 20)


@dataclass(frozen=True)
class Case:
    """One model, and what is done with it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    half: bool = False  # autocast to bfloat16
    compiler: str | None = None
    freezes: bool = True
    wants_input: bool = False  # its gradient, in each step
    tolerance: float = 2e-6  # of sums over passes and ranks; each gradient has the same bits


CASES = {
    "residual": Case(born_models.Residuals, IMAGES),
    "channels_last": Case(partial(born_models.Residuals, channels_last=True), IMAGES),
    "separable": Case(born_models.Separable, IMAGES),
    "lstm": Case(born_models.Recurrent, SEQUENCES),
    "vision": Case(born_models.Vision, LARGE_IMAGES),
    "tied": Case(born_models.Words, FEATURES),
    "sums": Case(born_models.Sums, FEATURES),
    "layers": Case(born_models.Layers, FEATURES),
    "reentrant": Case(partial(born_models.Layers, checkpoints=True), FEATURES, wants_input=True),
    "checkpoints": Case(partial(born_models.Layers, checkpoints=False), FEATURES),
    "autocast": Case(born_models.Vision, LARGE_IMAGES, half=True),
    "aot": Case(born_models.Layers, FEATURES, compiler="aot_eager", freezes=False, tolerance=1e-4),
}
if ranks.WHOLE_MATRIX:
    CASES["inductor"] = Case(
        born_models.Layers, FEATURES, compiler="inductor", freezes=False, tolerance=1e-4
    )
    # Its rounding turns over a ReLU in one step, with FARANDOLE_BORN_GRADIENTS=0 as well.
    CASES["inductor_images"] = Case(
        born_models.Residuals, IMAGES, compiler="inductor", freezes=False, tolerance=1e-2
    )


@dataclass
class Step:
    """What all ranks do: the same list of passes on each, with batches of their own."""

    chance: random.Random
    sizes: list[list[int]] = field(init=False)  # by pass, by rank
    weights: list[list[float]] | None = field(init=False)
    wants_input: bool = field(init=False)
    keeps_zeros: bool = field(init=False)

    def __post_init__(self) -> None:
        passes = 2 if self.chance.random() < 0.2 else 1
        usual = self.chance.random() < 0.6
        pick = partial(self.chance.choice, [1, 2, 3, 5])
        self.sizes = [[4 if usual else pick() for _ in range(WORLD_SIZE)] for _ in range(passes)]
        self.weights = None
        if self.chance.random() < 0.4:
            pick = partial(self.chance.choice, [0.5, 1.0, 3.0, 7.0])
            self.weights = [[pick() for _ in range(WORLD_SIZE)] for _ in range(passes)]
        self.wants_input = self.chance.random() < 0.3
        self.keeps_zeros = self.chance.random() < 0.1

    def weight(self, number: int, rank: int) -> float:
        return self.weights[number][rank] if self.weights else 1.0

    def divisor(self) -> float:
        if not self.weights:
            return WORLD_SIZE
        return sum(sum(weights) for weights in self.weights)


def batch(case: Case, seed: int, size: int, wants_input: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, *case.shape, generator=generator).requires_grad_(
        wants_input or case.wants_input
    )


def loss_of(case: Case, model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16) if case.half else nullcontext():
        return model(x).float().square().mean()


def expected(
    case: Case, plain: nn.Module, step: Step, seed: int
) -> tuple[list[Tensor | None], dict[tuple[int, int], Tensor]]:
    """The weighted mean of all gradients, summed in float64, and the inputs' gradients."""
    sums: list[Any] = [None] * len([*plain.parameters()])
    inputs = {}
    for number, sizes in enumerate(step.sizes):
        for rank, size in enumerate(sizes):
            x = batch(case, seed + 10 * number + rank, size, step.wants_input)
            plain.zero_grad()
            loss_of(case, plain, x).backward()
            if x.grad is not None:
                inputs[number, rank] = x.grad
            for index, parameter in enumerate(plain.parameters()):
                if parameter.grad is not None:
                    term = step.weight(number, rank) * parameter.grad.double()
                    sums[index] = term if sums[index] is None else sums[index] + term
    return [None if each is None else each / step.divisor() for each in sums], inputs


def take(case: Case, ddp: DistributedDataParallel, step: Step, seed: int) -> dict[int, Tensor]:
    """The step, on this rank. Returns the inputs' gradients, by pass."""
    rank, inputs = dist.get_rank(), {}
    ddp.zero_grad(set_to_none=not step.keeps_zeros)
    for number, sizes in enumerate(step.sizes):
        x = batch(case, seed + 10 * number + rank, sizes[rank], step.wants_input)
        ddp.set_loss_weight(step.weight(number, rank) if step.weights else None)
        is_last = number + 1 == len(step.sizes)
        with nullcontext() if is_last else ddp.no_sync():
            loss_of(case, ddp, x).backward()
        if x.grad is not None:
            inputs[number] = x.grad
    return inputs


def freeze(chance: random.Random, *models: nn.Module) -> None:
    """Some parameters, but never all of them."""
    frozen = [chance.random() < 0.3 for _ in models[0].parameters()]
    frozen[-1] = False
    for model in models:
        for parameter, is_frozen in zip(model.parameters(), frozen, strict=True):
            parameter.requires_grad_(not is_frozen)
            parameter.grad = None


def torture(rank: int, world_size: int, name: str) -> list[int]:
    """Bytes that were copied into buckets, by step."""
    case, chance = CASES[name], random.Random(7)
    torch.manual_seed(0)
    plain = case.make()
    module = copy.deepcopy(plain)
    compiler = partial(torch.compile, backend=case.compiler, dynamic=True)
    ddp = DistributedDataParallel(compiler(module) if case.compiler else module)
    copied = []
    for number in range(STEPS):
        if case.freezes and number % 8 == 7:
            freeze(chance, plain, module)
        step, seed = Step(chance), 100 * number
        wanted, wanted_inputs = expected(case, plain, step, seed)
        inputs = take(case, ddp, step, seed)
        copied.append(ddp.stats().copied_bytes)
        for index, (parameter, gradient) in enumerate(
            zip(module.parameters(), wanted, strict=True)
        ):
            assert_close(case, parameter.grad, gradient, f"parameter {index} in step {number}")
        for (of_pass, of_rank), gradient in wanted_inputs.items():
            if of_rank == rank:
                assert_close(case, inputs[of_pass], gradient, f"input in step {number}")
    return copied


def assert_close(case: Case, found: Tensor | None, wanted: Tensor | None, what: str) -> None:
    if found is None or wanted is None:
        assert found is wanted, what
        return
    wanted = wanted.double()
    error, scale = (found.double() - wanted).abs().max(), wanted.abs().max()
    assert error <= case.tolerance * scale, f"{what}: {error} of {scale}"


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_one_process(name: str) -> None:
    setup = ranks.Setup(timeout_s=DEADLINE_S)  # inductor compiles on one rank while others wait
    for copied in ranks.run(torture, WORLD_SIZE, name, setup=setup, deadline_s=DEADLINE_S):
        assert min(copied) <= copied[0] / 2, copied  # they were born, at least some


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def train_on_odd_batches(rank: int, world_size: int) -> list[int]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)
    )
    ddp = DistributedDataParallel(model)
    copied = []
    for size in 3 * [4, 4, 4, 4, 1, 4, 4, 3, 5, 4, 1, 4]:
        ddp.zero_grad()
        x = torch.randn(size, 64, 16, 16)
        ddp(x).square().mean().backward()
        copied.append(ddp.stats().copied_bytes)
        plain = copy.deepcopy(model)
        plain.zero_grad()
        plain(x).square().mean().backward()
        for own, other in zip(gradients_of(model), gradients_of(plain), strict=True):
            assert torch.equal(own, other)
    return copied


def test_convolutions_of_other_batches_do_not_disturb_onednn() -> None:
    """oneDNN allocates by address alone (raw_allocate), and other sizes for each batch."""
    (copied,) = ranks.run(train_on_odd_batches, 1)
    assert copied[1] == copied[2] == copied[3] < copied[0] / 100  # batches of one size
    assert set(copied[24:]) == {copied[3]}  # told apart by all sizes since the first wrong guess


def triple(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(3)


def train_with_hooks(rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    plain = born_models.Sums()
    model = copy.deepcopy(plain)
    ddp = DistributedDataParallel(model)
    for each in (plain, model):
        for shift in each.shifts[1:]:
            shift.register_post_accumulate_grad_hook(triple)
    for step in range(12):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(step))
        for each in (ddp, plain):
            each.zero_grad()
            each(x).square().mean().backward()
        for own, other in zip(gradients_of(model), gradients_of(plain), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)


def test_a_hook_that_edits_a_gradient_edits_no_other_tensor() -> None:
    ranks.run(train_with_hooks, WORLD_SIZE)


def train_in_python(rank: int, world_size: int) -> list[int]:
    """Gradients that come from Python, as those of compiled modules do."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
            context.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            x, weight = context.saved_tensors
            of_weight = x.t() @ gradient
            if keeps:
                kept.append((of_weight, of_weight.clone()))
            return gradient @ weight.t(), of_weight

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x: Tensor) -> Tensor:
            return Product.apply(x, self.weight)

    torch.manual_seed(0)
    ddp = DistributedDataParallel(Model())
    ddp.set_loss_weight(1.0 + rank)
    kept: list[tuple[Tensor, Tensor]] = []
    copied = []
    for step in range(20):
        keeps = step >= 12
        ddp.zero_grad()
        ddp(torch.randn(3, 64)).square().mean().backward()
        copied.append(ddp.stats().copied_bytes)
    assert all(torch.equal(tensor, copy) for tensor, copy in kept)
    return copied


def test_gradients_from_python_are_born_and_stay_what_they_are_to_who_keeps_them() -> None:
    for copied in ranks.run(train_in_python, WORLD_SIZE):
        assert copied[1:12] == [0] * 11


UNLOAD = """
import _ctypes, ctypes, pathlib, sys
library = ctypes.CDLL(sys.argv[1])
_ctypes.dlclose(library._handle)
sys.exit("libfarandole.so" not in pathlib.Path("/proc/self/maps").read_text())
"""


@pytest.mark.system
def test_the_library_stays_where_torch_has_its_allocator() -> None:
    library = Path(farandole.__file__).parent / "lib" / "libfarandole.so"
    subprocess.run([sys.executable, "-IS", "-c", UNLOAD, library], check=True, timeout=60)


def test_a_setting_turns_it_off() -> None:
    setup = ranks.Setup(env={"FARANDOLE_BORN_GRADIENTS": "0"})
    (copied,) = ranks.run(train_on_odd_batches, 1, setup=setup)
    assert min(copied) == copied[0]
