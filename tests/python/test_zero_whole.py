# SPDX-License-Identifier: Apache-2.0
"""farandole.ZeroRedundancyOptimizer with whole parameters: any optimizer trains as unsharded."""

from __future__ import annotations

import io
import logging
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, InvalidArgument, ZeroRedundancyOptimizer
from farandole.optim import LAMB
from torch import Tensor, nn, optim
from torch.distributed.algorithms.join import Join

import ranks
from whole_optimizers import BoundedAdamW, Replacing, Shampoo
from zero_oracle import (
    HOST_PAIRS,
    PAIRS,
    Bowl,
    Trial,
    assert_same_everywhere,
    average_gradients,
    check_close,
    check_parameters,
    loss,
)

MATRICES = [((33, 17), torch.float32), ((16, 64), torch.float32), ((5, 3), torch.float64)]
MIXED = [
    *MATRICES,
    ((), torch.float32),
    ((31,), torch.float32),
    ((4, 7, 3, 3), torch.float32),
    ((0,), torch.float32),
    ((29,), torch.float64),
]
CASES: list[tuple[type[optim.Optimizer], dict[str, Any], Any]] = [
    (optim.Muon, {"lr": 0.1, "momentum": 0.9}, MATRICES),
    (optim.Adafactor, {"lr": 0.1}, MIXED[:6]),
    (Shampoo, {"lr": 0.05}, MIXED[:6]),
    (BoundedAdamW, {"lr": 0.1}, [*MIXED[:6], MIXED[7]]),
    (Replacing, {"lr": 0.1}, MIXED),
]


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[:2], "lr": 0.02}, {"params": parameters[2:]}]


def share(value: Any, root: int = 0) -> Any:
    """What rank ``root`` has, on all, through torch.save()."""
    file = io.BytesIO()
    torch.save(value, file)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, file.getvalue())
    return torch.load(io.BytesIO(everyone[root]), weights_only=False)


def train(rank: int, world_size: int, gradients: str) -> None:
    """Several groups, one of which has a frozen parameter for a while."""
    for optimizer, options, shapes in CASES:
        model = Bowl(shapes)
        model.weights[1].requires_grad_(False)
        trial = Trial(model, optimizer, gradients=gradients, groups=two_groups, **options)
        assert trial.sharded.partition == "parameters"
        trial.train(range(1))
        trial.check(f"{optimizer.__name__} after one step")
        trial.train(range(1, 6))
        for part in (trial.model, trial.alone):
            part.weights[1].requires_grad_(True)
        trial.requires_grad_has_changed()
        trial.train(range(6, 12))
        trial.check(optimizer.__name__)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_any_optimizer_trains_as_unsharded(world_size: int, backend: str, gradients: str) -> None:
    ranks.run(train, world_size, gradients, setup=ranks.Setup(backend=backend))


def known(rank: int, world_size: int, gradients: Any) -> None:
    """What could be cut may also be whole."""
    for optimizer, options in (
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (optim.AdamW, {"lr": 0.05}),
        (LAMB, {"lr": 0.01}),
        (optim.RMSprop, {"lr": 0.01}),
    ):
        trial = Trial(Bowl(), optimizer, gradients=gradients, **options)
        trial.sharded = ZeroRedundancyOptimizer(
            trial.model.parameters(),
            optimizer,
            gradients=gradients,
            partition="parameters",
            **options,
        )
        trial.train(range(5))
        trial.check(optimizer.__name__, exact=optimizer is optim.SGD)
        trial.sharded.rebuild()
        trial.train(range(5, 8))
        trial.check(f"{optimizer.__name__} after rebuild()")


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_known_optimizers_of_whole_parameters(backend: str, gradients: str) -> None:
    ranks.run(known, 3, gradients, setup=ranks.Setup(backend=backend))


# Checkpoints.


def check_alike(own: Any, wanted: Any, text: str) -> None:
    """States with tensors wherever they are."""
    if isinstance(wanted, Tensor):
        check_close(own, wanted, text)
    elif isinstance(wanted, dict):
        assert own.keys() == wanted.keys(), text
        for key, value in wanted.items():
            check_alike(own[key], value, f"{text}: {key}")
    elif isinstance(wanted, list | tuple):
        assert len(own) == len(wanted), text
        for each, other in zip(own, wanted, strict=True):
            check_alike(each, other, text)
    else:
        assert own == wanted, text


def round_trips(rank: int, world_size: int, gradients: str) -> None:
    """The unsharded optimizer has the same state, and each goes on with that of the other."""
    for optimizer, options, shapes in CASES[:4]:
        text = optimizer.__name__
        trial = Trial(
            Bowl(shapes), optimizer, gradients=gradients, groups=two_groups, watcher=1, **options
        )
        trial.train(range(3))
        trial.sharded.consolidate_state_dict(to=1)
        saved = share(trial.sharded.state_dict() if rank == 1 else None, 1)
        plain = share(trial.unsharded.state_dict() if rank == 1 else None, 1)
        check_alike(saved["state"], plain["state"], text)
        if rank == 1:
            trial.unsharded.load_state_dict(saved)
        trial.sharded.load_state_dict(plain)
        trial.train(range(3, 6))
        trial.check(text)


@pytest.mark.parametrize(("backend", "gradients"), HOST_PAIRS)
def test_states_are_those_of_the_unsharded_optimizer(backend: str, gradients: str) -> None:
    ranks.run(round_trips, 3, gradients, setup=ranks.Setup(backend=backend))


def first_half(rank: int, world_size: int) -> bytes:
    saved = []
    for optimizer, options, shapes in CASES[:4]:
        model = Bowl(shapes)
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
    saved = torch.load(io.BytesIO(file), weights_only=False)
    for (optimizer, options, shapes), (parameters, state) in zip(CASES[:4], saved, strict=True):
        wanted, model = Bowl(shapes), Bowl(shapes)
        unsharded = optimizer(wanted.parameters(), **options)
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


def test_states_of_other_world_sizes() -> None:
    saved = ranks.run(first_half, 3)[0]
    ranks.run(second_half, 2, saved)
    ranks.run(second_half, 1, saved)


# What comes and goes.


def all_but_the_third(model: nn.Module) -> list[nn.Parameter]:
    return [p for number, p in enumerate(model.parameters()) if number != 2]


def changes(rank: int, world_size: int, gradients: str) -> None:
    """Other ranks, clipping, a group that comes later."""
    for optimizer, options, shapes in CASES[:4]:
        text = optimizer.__name__
        model = Bowl(shapes)
        model.weights[2].requires_grad_(False)
        trial = Trial(
            model,
            optimizer,
            gradients=gradients,
            groups=all_but_the_third,
            ddp=gradients == "shard",
            **options,
        )
        trial.train(range(2))
        trial.sharded.rebuild()
        trial.train(range(2, 4))
        trial.check(f"{text} after rebuild()")
        trial.zero_grad()
        trial.backward(4)
        norm = trial.sharded.clip_grad_norm_(0.5)
        if rank == 0:
            wanted = nn.utils.clip_grad_norm_(all_but_the_third(trial.alone), 0.5)
            torch.testing.assert_close(norm.double().cpu(), wanted.double().cpu())
        trial.step()
        trial.check(f"{text} after a clip", like=torch.float32)
        for each, part in zip(trial.optimizers, (trial.model, trial.alone), strict=True):
            each.add_param_group({"params": [part.weights[2]], "lr": 0.01})
            part.weights[2].requires_grad_(True)
        trial.requires_grad_has_changed()
        trial.train(range(5, 7))
        trial.check(f"{text} with a group more", like=torch.float32)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_parameters_and_ranks_come_and_go(backend: str, gradients: str) -> None:
    ranks.run(changes, 3, gradients, setup=ranks.Setup(backend=backend))


def joined(rank: int, world_size: int, gradients: str) -> None:
    trial = Trial(Bowl(MATRICES), Shampoo, gradients=gradients, lr=0.05)
    assert trial.ddp is not None
    with Join([trial.ddp, trial.sharded]):
        for step in range(2 + rank):
            trial.sharded.zero_grad()
            loss(trial.ddp, rank, step).backward()
            trial.sharded.step()
    trial.sharded.wait()
    assert_same_everywhere(trial.model)
    for step in range(1 + world_size):
        trial.alone.zero_grad()
        for other in range(world_size):
            if step < 2 + other:
                (loss(trial.alone, other, step) / world_size).backward()
        trial.step_alone()
    check_parameters(trial.model, trial.alone)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_uneven_inputs(backend: str, gradients: str) -> None:
    ranks.run(joined, 2, gradients, setup=ranks.Setup(backend=backend))


class Slopes(nn.Module):
    """The loss is linear: gradients are what forward() is given."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weights = nn.ParameterList(
            torch.randn(shape, generator=generator).to(dtype)
            for dtype in (torch.bfloat16, torch.float32)
            for shape in ((37, 5), (8, 16), (3, 3))
        )

    def forward(self, slopes: list[Tensor]) -> Tensor:
        losses = [(w * slope).sum() for w, slope in zip(self.weights, slopes, strict=True)]
        return torch.stack([each.double() for each in losses]).sum()


def halves(rank: int, world_size: int, gradients: Any) -> None:
    """Half parameters have float32 values, which the optimizer gets in their shape."""
    for optimizer in (optim.Muon, Shampoo):
        model = Slopes()
        masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
        ddp = DistributedDataParallel(model)
        sharded = ZeroRedundancyOptimizer(
            model.parameters(), optimizer, gradients=gradients, lr=1e-3
        )
        unsharded = optimizer(masters, lr=1e-3)
        generator = torch.Generator().manual_seed(4)
        for step in range(10):
            slopes = []
            for p, master in zip(model.parameters(), masters, strict=True):
                every = torch.randint(-8, 9, (world_size, *p.shape), generator=generator)
                master.grad = every.double().mean(0).float()
                slopes.append(every[rank].to(p.dtype))
            sharded.zero_grad()
            ddp(slopes).backward()
            sharded.step()
            unsharded.step()
            if step == 5:
                sharded.consolidate_state_dict()
                saved = share(sharded.state_dict() if rank == 0 else None)
                sharded.load_state_dict(saved)
        sharded.consolidate_state_dict()
        if rank == 0:
            states = sharded.state_dict()["state"]
            for number, master in enumerate(masters[:3]):
                own = states[number]["master_parameter"]
                check_close(own, master.detach(), f"{optimizer.__name__}: {number}")
        assert_same_everywhere(model)


@pytest.mark.parametrize(("backend", "gradients"), PAIRS)
def test_half_parameters(backend: str, gradients: str) -> None:
    ranks.run(halves, 2, gradients, setup=ranks.Setup(backend=backend))


# How parameters are divided, and what is said.


def divided(rank: int, world_size: int) -> tuple[int, list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("farandole")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    sizes = [100, 90, 50, 40, 30, 20, 10, 5, 5]
    parameters = [nn.Parameter(torch.ones(n, 8)) for n in sizes]
    sharded = ZeroRedundancyOptimizer(parameters, BoundedAdamW)
    for p in parameters:
        p.grad = torch.ones_like(p)
    sharded.step()
    ZeroRedundancyOptimizer(parameters, optim.SGD)
    ZeroRedundancyOptimizer(parameters, BoundedAdamW, partition="parameters")
    return sharded.state_bytes(), lines


def test_parameters_are_divided_by_size_and_the_log_says_so() -> None:
    results = ranks.run(divided, 3)
    own = [state_bytes for state_bytes, _ in results]
    assert sum(own) >= 2 * 4 * 8 * 350
    assert max(own) <= 2 * 4 * 8 * 120 + 200  # 350 rows on 3 ranks
    for _, lines in results:
        assert len(lines) == 1
        assert lines[0].startswith("INFO ZeroRedundancyOptimizer: BoundedAdamW is not known")


def made_before(rank: int, world_size: int) -> None:
    """Parameters need be the same by the first step, not when the optimizer is made."""
    for optimizer in (optim.AdamW, optim.RMSprop, Shampoo):
        model = Bowl(MATRICES)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(rank)
        sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer, lr=0.1)
        average_gradients(model, world_size, 0)
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="differ"):
                sharded.step()
        ddp = DistributedDataParallel(model)
        wanted = Bowl(MATRICES)
        unsharded = optimizer(wanted.parameters(), lr=0.1)
        for step in range(3):
            for each in (model, wanted):
                each.zero_grad()
            loss(ddp, rank, step).backward()
            average_gradients(wanted, world_size, step)
            sharded.step()
            unsharded.step()
        sharded.wait()
        check_parameters(model, wanted, optimizer.__name__)
        assert_same_everywhere(model)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_a_model_that_is_wrapped_after_its_optimizer(backend: str) -> None:
    ranks.run(made_before, 2, setup=ranks.Setup(backend=backend))


class Resizing(Replacing):
    """Does what no optimizer should."""

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = p.data.double()


def refusals(rank: int, world_size: int) -> None:
    parameters = list(Bowl(MATRICES).parameters())
    cases: list[tuple[type[optim.Optimizer], dict[str, Any], str]] = [
        (optim.Muon, {"partition": "elements"}, "by elements[\\s\\S]*orthogonalizes whole"),
        (optim.Adafactor, {"element_wise": True}, "by elements[\\s\\S]*rows and columns"),
        (
            optim.RMSprop,
            {"partition": "elements", "element_wise": False},
            "by elements[\\s\\S]*element_wise=False",
        ),
        (optim.AdamW, {"partition": "layers"}, "got partition='layers'"),
    ]
    for optimizer, options, text in cases:
        with pytest.raises(InvalidArgument, match=text):
            ZeroRedundancyOptimizer(parameters, optimizer, **options)
    with pytest.raises(ValueError, match="2D"):  # on every rank, whatever it would own
        ZeroRedundancyOptimizer([*parameters, nn.Parameter(torch.ones(3))], optim.Muon)
    model = Bowl([((2, 2), torch.float32), ((2, 2), torch.float32)])
    sharded = ZeroRedundancyOptimizer(model.parameters(), Resizing)
    average_gradients(model, world_size, 0)
    with pytest.raises(InvalidArgument, match="changed the dtype, shape or device"):
        sharded.step()


def test_what_is_refused() -> None:
    ranks.run(refusals, 2)


def complex_over_gloo(rank: int, world_size: int) -> None:
    model = nn.ParameterList([torch.ones(3, dtype=torch.complex64)])
    holder = nn.Module()
    holder.weights = model
    ddp = DistributedDataParallel(holder)
    with pytest.raises(farandole.NotSupported, match="complex parameters"):
        ZeroRedundancyOptimizer(
            ddp.parameters(), optim.SGD, gradients="shard", partition="parameters"
        )


def profiled(rank: int, world_size: int) -> None:
    """A step is one event, whoever runs it, and also one that fails ends."""
    for optimizer in (optim.AdamW, optim.RMSprop, Shampoo):
        model = Bowl(MATRICES)
        sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer)
        average_gradients(model, world_size, 0)
        sharded.step()
        with torch.profiler.profile() as profile:
            sharded.step()
            sharded.step()
            sharded.param_groups[0]["lr"] = 0.1 + rank
            with pytest.raises(farandole.StepError):
                sharded.step()
        names = [event.name for event in profile.events()]
        assert names.count("farandole:sharded_step") == 3, optimizer.__name__


def test_a_profiler_sees_steps() -> None:
    ranks.run(profiled, 2)


def test_complex_parameters_over_gloo() -> None:
    ranks.run(complex_over_gloo, 2, setup=ranks.Setup(backend="gloo"))
