# SPDX-License-Identifier: Apache-2.0
"""Gradients that share names: whatever ranks do differently, results are those of one process.

All numbers are small and whole, or halves of such, so they are compared with ==.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import farandole
import horovod.torch as hvd
import pytest
import torch
import torch.distributed as dist
from farandole.named import gradient_units
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor, nn

import horovod_session
import ranks

PARTS = 6
RATE = 0.25

horovod = partial(horovod_session.horovod, bucket_bytes=200)


class Parts(nn.Module):
    """Layers beside each other, of which a loss may use some, in any order."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 4) for _ in range(PARTS))
        for number, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                parameter.copy_((torch.arange(parameter.numel()) % 5 + number).view_as(parameter))

    def forward(self, features: Tensor, order: Sequence[int]) -> Tensor:
        return torch.stack([(index + 1) * self.layers[index](features).sum() for index in order])


def features_of(step: int, rank: int, width: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-4, 5, (2, width), generator=generator).float()


def sgd(model: nn.Module, momentum: float = 0.5) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)


def wrapped(model: nn.Module, momentum: float = 0.5, **options: object) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = hvd.DistributedOptimizer(
        sgd(model, momentum), named_parameters=model.named_parameters(), **options
    )
    return optimizer


ALL = tuple(range(PARTS))
Order = Callable[[int, int], Sequence[int]]  # of a step and rank


def expected(steps: int, world_size: int, order: Order = lambda *_: ALL) -> Parts:
    """What one process makes of the batches of all ranks."""
    model = Parts()
    optimizer = sgd(model)
    for step in range(steps):
        for each in model.parameters():
            each.grad = torch.zeros_like(each)
        for rank in range(world_size):
            (model(features_of(step, rank), order(step, rank)).sum() / world_size).backward()
        optimizer.step()
    return model


def check(model: nn.Module, alone: nn.Module) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def in_other_orders(rank: int, world_size: int) -> None:
    for order in (
        lambda step, rank: [(k + step + 2 * rank) % PARTS for k in range(PARTS)],
        lambda step, rank: [(step + rank + k) % PARTS for k in range(3)],  # some are unused
        lambda step, rank: ALL if rank == 0 else [step % PARTS],
    ):
        with horovod():
            model = Parts()
            parameters = list(model.parameters())
            if rank == 1:
                parameters.reverse()  # of the optimizer; names tell which is which
            plain = torch.optim.SGD(parameters, lr=RATE, momentum=0.5)
            optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
            for step in range(5):
                optimizer.zero_grad()
                for index in order(step, rank):  # backward by backward
                    model(features_of(step, rank), [index]).sum().backward()
                optimizer.step()
            check(model, expected(5, world_size, order))


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_may_come_in_any_order_or_not_at_all(world_size: int) -> None:
    ranks.run(in_other_orders, world_size)


def with_fewer_batches(rank: int, world_size: int) -> None:
    def there(step: int, rank: int) -> bool:
        return step % 5 < 2 + rank

    with horovod():
        model = Parts()
        optimizer = wrapped(model)
        for step in range(10):
            if there(step, rank):
                optimizer.zero_grad()
                model(features_of(step, rank), ALL).sum().backward()
                optimizer.step()
            if step % 5 == 4:
                assert hvd.join() == world_size - 1
                hvd.broadcast_parameters(model.state_dict(), root_rank=world_size - 1)
                hvd.broadcast_optimizer_state(optimizer, root_rank=world_size - 1)
        alone = Parts()
        plain = sgd(alone)
        for step in range(10):
            if not any(there(step, each) for each in range(world_size)):
                continue
            plain.zero_grad()
            for each in range(world_size):
                if there(step, each):
                    (alone(features_of(step, each), ALL).sum() / world_size).backward()
            plain.step()
        check(model, alone)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_that_joins_adds_zeros(world_size: int) -> None:
    ranks.run(with_fewer_batches, world_size)


def beside_other_operations(rank: int, world_size: int) -> None:
    """What waits for the other rank comes before the step here, after it there."""
    with horovod():
        model = Parts()
        optimizer = wrapped(model)
        for step in range(4):
            optimizer.zero_grad()
            model(features_of(step, rank), ALL).sum().backward()
            if rank == 0 and step % 2:
                hvd.allreduce(torch.ones(3), name="loss")
            elif rank == 0:
                dist.barrier()
            optimizer.step()
            if rank == 1 and step % 2:
                hvd.allreduce(torch.ones(3), name="loss")
            elif rank == 1:
                dist.barrier()
        check(model, expected(4, world_size))


def test_nothing_waits_that_would_not_in_horovod() -> None:
    began = time.monotonic()
    ranks.run(beside_other_operations, 2)
    assert time.monotonic() - began < 60


def added_up(rank: int, world_size: int) -> None:
    with horovod():
        for keeps in (False, True):  # zeroed gradients
            model = Parts()
            optimizer = wrapped(model, backward_passes_per_step=2)
            for step in range(4):
                optimizer.zero_grad(set_to_none=not keeps)
                loss = model(features_of(step, rank), ALL).sum()
                loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
            alone = Parts()
            plain = sgd(alone)
            for step in range(4):
                plain.zero_grad()
                for each in range(world_size):
                    (2 * alone(features_of(step, each), ALL).sum() / world_size).backward()
                plain.step()
            check(model, alone)
            model(features_of(0, rank), ALL).sum().backward()
            with pytest.raises(AssertionError, match="zero_grad"):
                optimizer.zero_grad()
            optimizer.set_backward_passes_per_step(1)
            optimizer.step()
            optimizer.zero_grad()
            loss = model(features_of(0, rank), ALL).sum()
            loss.backward(retain_graph=True)
            with pytest.raises(AssertionError, match="more than 1 times"):
                loss.backward()
            optimizer.step()


def test_gradients_of_several_passes_add_up() -> None:
    ranks.run(added_up, 2)


def kept(rank: int, world_size: int) -> None:
    """A gradient that the program keeps is its own, as without Horovod."""
    with horovod(bucket_bytes=1 << 20):
        width = 2048  # gradients of 32 KiB, which are computed in their places
        model, alone = Parts(width), Parts(width)
        optimizer, plain = wrapped(model), sgd(alone)
        ours: list[list[Tensor]] = []
        theirs: list[list[Tensor]] = []
        for step in range(6):
            for each in (optimizer, plain):
                each.zero_grad(set_to_none=step % 3 != 2)
            model(features_of(step, rank, width), ALL).sum().backward()
            optimizer.step()
            for each_rank in range(world_size):
                features = features_of(step, each_rank, width)
                (alone(features, ALL).sum() / world_size).backward()
            plain.step()
            check(model, alone)
            ours.append([each.grad if step % 2 else each.grad.data for each in model.parameters()])
            theirs.append([each.grad for each in alone.parameters()])
            for before, also_before in zip(ours, theirs, strict=True):
                for one, other in zip(before, also_before, strict=True):
                    assert torch.equal(one, other)


def test_gradients_that_the_program_keeps_stay_as_they_are() -> None:
    ranks.run(kept, 2)


def with_other_parameters(rank: int, world_size: int) -> None:
    with horovod():
        model, alone = Parts(), Parts()
        for each in (model, alone):
            each.layers[0].requires_grad_(False)
            each.layers[1].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.layers[:5].parameters(), lr=RATE, momentum=0.5),
            named_parameters=model.named_parameters(),
        )
        plain = torch.optim.SGD(alone.layers[:5].parameters(), lr=RATE, momentum=0.5)
        for step in range(8):
            if step == 2:
                for each in (model, alone):
                    each.layers[0].requires_grad_(True)
            if step == 4:
                optimizer.add_param_group({"params": model.layers[5].parameters(), "lr": 0.5})
                plain.add_param_group({"params": alone.layers[5].parameters(), "lr": 0.5})
            if step == 6:
                for each in (model, alone):
                    each.layers[2].requires_grad_(False)
            optimizer.zero_grad()
            plain.zero_grad()
            model(features_of(step, rank), ALL).sum().backward()
            optimizer.step()
            if step < 4:
                model.layers[5].zero_grad()
                alone.layers[5].zero_grad()
            for each_rank in range(world_size):
                (alone(features_of(step, each_rank), ALL).sum() / world_size).backward()
            plain.step()
            check(model, alone)


def test_parameters_may_be_frozen_unfrozen_and_added() -> None:
    ranks.run(with_other_parameters, 2)


def two_optimizers(rank: int, world_size: int) -> None:
    with horovod():
        models, alone = [Parts(), Parts()], [Parts(), Parts()]
        optimizers = [
            hvd.DistributedOptimizer(
                sgd(model),
                named_parameters=[(f"{k}.{n}", p) for n, p in model.named_parameters()],
            )
            for k, model in enumerate(models)
        ]
        plain = [sgd(model) for model in alone]
        for step in range(4):
            for k in (0, 1) if (rank + step) % 2 else (1, 0):
                optimizers[k].zero_grad()
                models[k](features_of(step + k, rank), ALL).sum().backward()
            for optimizer in optimizers if rank else reversed(optimizers):
                optimizer.step()
            for k in (0, 1):
                plain[k].zero_grad()
                for each in range(world_size):
                    (alone[k](features_of(step + k, each), ALL).sum() / world_size).backward()
                plain[k].step()
        check(models[0], alone[0])
        check(models[1], alone[1])


def test_two_optimizers_in_any_order() -> None:
    ranks.run(two_optimizers, 2)


class Mixed(nn.Module):
    """Sparse, half, tied and empty parameters beside dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)
        self.other = nn.Linear(4, 4)
        self.halves = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.again = self.other
        self.empty = nn.Parameter(torch.empty(0))
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_((torch.arange(parameter.numel()) % 3).view_as(parameter))

    def forward(self, step: int, rank: int) -> Tensor:
        features = features_of(step, rank)
        found = self.table(torch.tensor([rank, step % 8, step % 8]))
        result = self.other(features).sum() + self.again(features[:1]).sum() + found.sum()
        return result + (self.halves * features[0].to(torch.bfloat16)).sum().float()


def mixed(rank: int, world_size: int) -> None:
    with horovod(bucket_bytes=1 << 20):
        model, alone = Mixed(), Mixed()
        optimizer, plain = wrapped(model, momentum=0), sgd(alone, momentum=0)
        for step in range(4):
            optimizer.zero_grad()
            plain.zero_grad()
            model(step, rank).backward()
            optimizer.step()
            for each in range(world_size):
                (alone(step, each) / world_size).backward()
            plain.step()
            for (name, ours), theirs in zip(
                model.named_parameters(), alone.parameters(), strict=True
            ):
                assert torch.equal(ours, theirs), name


def test_parameters_of_all_kinds_in_one_model() -> None:
    ranks.run(mixed, 2)


def clipped_and_loaded(rank: int, world_size: int) -> None:
    with horovod():
        model, alone = Parts(), Parts()
        optimizer, plain = wrapped(model), sgd(alone)
        for step in range(6):
            optimizer.zero_grad()
            plain.zero_grad()
            model(features_of(step, rank), ALL).sum().backward(create_graph=step == 4)
            optimizer.synchronize()
            for each in range(world_size):
                (alone(features_of(step, each), ALL).sum() / world_size).backward()
            for each in (model, alone):
                nn.utils.clip_grad_value_(each.parameters(), 2.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            plain.step()
            check(model, alone)
            if step == 2:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                model.load_state_dict(copy.deepcopy(model.state_dict()))
            if step == 3:  # autograd has other nodes from here on
                model.double().float()


def test_clipping_and_loading_between_steps() -> None:
    ranks.run(clipped_and_loaded, 2)


def failing(rank: int, world_size: int) -> None:
    with horovod():
        model = Parts()
        optimizer = wrapped(model)

        def fail(_: Tensor) -> None:
            raise RuntimeError("planted")

        for step in range(3):
            optimizer.zero_grad()
            loss = model(features_of(step, rank), ALL).sum()
            if rank == 1 and step == 1:
                hook = model.layers[2].weight.register_hook(fail)
                with pytest.raises(RuntimeError, match="planted"):
                    loss.backward()
                hook.remove()
            else:
                loss.backward()
            optimizer.step()  # with what there is; zeros for the rest
        others = hvd.allgather_object([each.tolist() for each in model.parameters()])
        assert others[0] == others[1]


def test_a_backward_that_fails_on_one_rank() -> None:
    ranks.run(failing, 2)


def dead(rank: int, world_size: int) -> None:
    hvd.init()
    model = Parts()
    optimizer = wrapped(model)
    for step in range(4):
        optimizer.zero_grad()
        if (step, rank) == (3, 1):  # before its thread has added gradients of this step
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(features_of(step, rank), ALL).sum()
        if step == 3:
            with pytest.raises(HorovodInternalError, match="rank 1"):  # noqa: PT012
                loss.backward()
                optimizer.step()
            os._exit(0)  # the default group has lost a rank too
        loss.backward()
        optimizer.step()


def test_a_rank_that_dies_is_an_error_in_step() -> None:
    ranks.run(dead, 2, may_die=(0, 1))


def different(rank: int, world_size: int) -> None:
    with horovod(bucket_bytes=1 << 20):
        model = nn.Linear(4, 4 + rank)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
        )
        model(torch.ones(1, 4)).sum().backward()
        with pytest.raises(HorovodInternalError, match="has the shapes"):
            optimizer.step()


def test_ranks_with_other_models_are_told() -> None:
    ranks.run(different, 2)


def of_closures(rank: int, world_size: int) -> None:
    with horovod():
        model, steps = Parts(), iter(range(6))
        optimizer = wrapped(model)
        with pytest.raises(farandole.NotSupported, match="averaging-copy"):
            copy.deepcopy(optimizer)
        features = features_of(0, rank)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(features_of(next(steps), rank), ALL).sum()
            loss.backward()
            return loss

        for step in range(3):
            loss = optimizer.step(closure)
            assert loss.requires_grad, step
        check(model, expected(3, world_size))
        # Horovod's way: what was computed before, and a closure that computes nothing.
        optimizer.zero_grad()
        model(features, ALL).sum().backward()
        before = [each.detach().clone() for each in model.parameters()]
        assert optimizer.step(lambda: 7) == 7
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        sums = hvd.allreduce(torch.cat([each.flatten() for each in model.parameters()]).detach())
        assert torch.equal(sums, torch.cat([each.flatten() for each in model.parameters()]))


def test_gradients_of_a_closure_are_averaged() -> None:
    ranks.run(of_closures, 2)


def of_line_searches(rank: int, world_size: int) -> None:
    with horovod():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        plain = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(features_of(0, rank)) - rank).square().mean()
            loss.backward()
            return loss

        first = hvd.allreduce(closure().detach())
        optimizer.synchronize()
        for step in range(3):
            with pytest.warns(UserWarning, match="twice") if step == 0 else nullcontext():
                last = optimizer.step(closure)
        for each in model.parameters():
            assert torch.equal(hvd.broadcast(each.detach(), 0), each)
        assert torch.equal(hvd.broadcast(last, 0), last)
        assert last < first


def test_line_searches_of_all_ranks_find_the_same() -> None:
    ranks.run(of_line_searches, 2)


def made_again_for_a_model(rank: int, world_size: int) -> None:
    with horovod():
        gc.disable()
        model = Parts()
        for step in range(3):
            optimizer = wrapped(model, momentum=0.0)
            optimizer.zero_grad()
            model(features_of(step, rank), ALL).sum().backward()
            optimizer.step()
            if step == 1:
                del optimizer
        alone = Parts()
        plain = sgd(alone, momentum=0.0)
        for step in range(3):
            plain.zero_grad()
            for each in range(world_size):
                (alone(features_of(step, each), ALL).sum() / world_size).backward()
            plain.step()
        check(model, alone)


def test_an_optimizer_may_be_made_again() -> None:
    ranks.run(made_again_for_a_model, 2)


def while_ranks_meet_anew(rank: int, world_size: int) -> None:
    model = Parts(width=64)
    gradient_units.BUCKET_BYTES = 1 << 20
    hvd.init()
    optimizer = wrapped(model)
    places = []
    for meeting in range(3):
        for step in range(3):
            optimizer.zero_grad(set_to_none=step == 0)
            model(features_of(3 * meeting + step, rank, 64), ALL).sum().backward()
            optimizer.step()
        assert all(unit.has_memory for unit in optimizer._units)
        places.append(model.layers[0].weight.grad.data_ptr())
        hvd.barrier()
        hvd.shutdown()
        for each in model.parameters():  # what ranks have shared stays readable
            assert each.grad is not None
            assert torch.isfinite(each.grad).all()
        hvd.init()
    hvd.shutdown()
    assert places[0] != places[1]  # memory of the ranks of now
    assert places[1] != places[2]
    alone = Parts(width=64)
    plain = sgd(alone)
    for step in range(9):
        plain.zero_grad()
        for each in range(world_size):
            (alone(features_of(step, each, 64), ALL).sum() / world_size).backward()
        plain.step()
    check(model, alone)


def test_an_optimizer_goes_on_after_ranks_met_anew() -> None:
    ranks.run(while_ranks_meet_anew, 2)
