# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer where gradients lie otherwise, are replaced, or are missing on some ranks.

All numbers are small and whole, or halves of such, so they are compared with ==.
"""

from __future__ import annotations

import farandole
import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor, nn

import ranks
from horovod_session import horovod

STEPS = 4


def optimizer_of(**named: Tensor) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(named.values(), lr=1.0), named_parameters=named.items()
    )


def means(world_size: int) -> float:
    """Of 1, 2, ... by rank."""
    return (world_size + 1) / 2


def of_other_strides(rank: int, world_size: int) -> None:
    with horovod():
        own = torch.zeros(2, 3) if rank else torch.zeros(3, 2).t()
        parameter = nn.Parameter(own)
        conv = nn.Conv2d(4, 4, 3)
        if rank == 0:
            conv.to(memory_format=torch.channels_last)
        optimizer = optimizer_of(p=parameter, w=conv.weight)
        factors = torch.arange(6.0).view(2, 3)
        kernels = torch.arange(conv.weight.numel()).view_as(conv.weight).float()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = (parameter * factors).sum() + (conv.weight * kernels).sum()
            (loss * (rank + 1.0)).backward()
            optimizer.step()
            assert torch.equal(parameter.grad, factors * means(world_size))
            assert torch.equal(conv.weight.grad, kernels * means(world_size))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_may_have_other_strides(world_size: int) -> None:
    ranks.run(of_other_strides, world_size)


def of_views(rank: int, world_size: int) -> None:
    total = world_size * means(world_size)
    with horovod():
        made = [torch.full((2,), complex(rank + 1, 1)) for _ in range(2)]
        views = [each.conj() for each in made]
        hvd.grouped_allreduce_(views, op=hvd.Sum)
        for each in views:
            assert torch.equal(each, torch.full((2,), complex(total, -world_size)))
        negated = torch.full((2,), complex(0, rank + 1)).conj().imag
        assert negated.is_neg()
        plain = torch.ones(2)
        hvd.grouped_allreduce_([negated, plain], op=hvd.Sum)
        assert torch.equal(negated, torch.full((2,), -total))
        assert torch.equal(plain, torch.full((2,), float(world_size)))
        sent = torch.full((2,), complex(rank, 1)).conj()
        hvd.broadcast_(sent, root_rank=1)
        assert torch.equal(sent, torch.full((2,), complex(1, -1)))

        complexes = [nn.Parameter(torch.zeros(2, dtype=torch.complex64)) for _ in range(2)]
        real = nn.Parameter(torch.zeros(2))
        optimizer = optimizer_of(c=complexes[0], e=complexes[1], b=real)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = sum((each.conj() * complex(rank + 1, 1)).real.sum() for each in complexes)
            (loss + real.sum()).backward()
            optimizer.step()
            for each in complexes:
                assert torch.equal(each.grad, torch.full((2,), complex(means(world_size), 1)))


def test_conjugated_and_negated_views_are_filled() -> None:
    ranks.run(of_views, 2)


def of_replaced(rank: int, world_size: int) -> None:
    with horovod():
        parameters = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
        optimizer = optimizer_of(**{f"p{index}": each for index, each in enumerate(parameters)})
        for _ in range(STEPS):
            optimizer.zero_grad()
            sum((each * (rank + 1.0)).sum() for each in parameters).backward()
            parameters[0].grad = parameters[0].grad.clone()
            if rank == 1:
                parameters[1].grad = None
            optimizer.step()
            for each in parameters:
                assert torch.equal(each.grad, torch.full((3,), means(world_size)))
        others = hvd.allgather(torch.stack([each.detach() for each in parameters]).unsqueeze(0))
        assert all(torch.equal(others[0], each) for each in others)


def test_gradients_may_be_replaced_while_they_travel() -> None:
    ranks.run(of_replaced, 2)


def of_equal_numbers(rank: int, world_size: int) -> None:
    with horovod(bucket_bytes=8):
        named = {name: nn.Parameter(torch.zeros(2)) for name in ("a", "w1", "w01", "w001")}
        given = dict(reversed(named.items())) if rank else named
        optimizer = optimizer_of(**given)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = sum((each * place).sum() for place, each in enumerate(named.values()))
            loss.backward()
            optimizer.step()
            for place, each in enumerate(named.values()):
                assert torch.equal(each.grad, torch.full((2,), float(place)))


def test_names_may_differ_in_zeros() -> None:
    ranks.run(of_equal_numbers, 2)


def of_sparse(rank: int, world_size: int, *, as_dense: bool) -> None:
    with horovod():
        embedding = nn.Embedding(4, 2, sparse=True)
        linear = nn.Linear(2, 2)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([embedding.weight, *linear.parameters()], lr=1.0),
            named_parameters=[("e", embedding.weight), *linear.named_parameters()],
            sparse_as_dense=as_dense,
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = linear.weight.sum() + linear.bias.sum()
            if step == 0 or rank == step % world_size:
                loss = loss + embedding(torch.tensor([step, step])).sum()
            loss.backward()
            optimizer.step()
            expected = torch.zeros(4, 2)
            expected[step] = 2.0 if step == 0 else 2.0 / world_size
            assert torch.equal(embedding.weight.grad.to_dense(), expected)


@pytest.mark.parametrize("as_dense", [False, True])
def test_an_embedding_may_be_unused_on_a_rank(as_dense: bool) -> None:
    ranks.run(_sparse_as_dense if as_dense else _sparse, 2)


def _sparse(rank: int, world_size: int) -> None:
    of_sparse(rank, world_size, as_dense=False)


def _sparse_as_dense(rank: int, world_size: int) -> None:
    of_sparse(rank, world_size, as_dense=True)


def of_a_step_that_does_not_fit(rank: int, world_size: int) -> None:
    with horovod():
        parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        optimizer = optimizer_of(a=parameters[0], b=parameters[1])
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = sum((each**2 + each).sum() for each in parameters)
            loss.backward(create_graph=step == 1 and rank == 0)
            if step == 1:
                with pytest.raises(HorovodInternalError):
                    optimizer.step()
                for each in parameters:
                    each.grad = None
                    torch.nn.init.zeros_(each)
                continue
            optimizer.step()
        gathered = hvd.allgather(parameters[0].detach().unsqueeze(0))
        assert torch.equal(gathered[0], gathered[1])


def test_an_optimizer_goes_on_after_a_step_that_does_not_fit() -> None:
    ranks.run(of_a_step_that_does_not_fit, 2)


def of_schedulers(rank: int, world_size: int) -> None:
    with horovod():
        parameter = nn.Parameter(torch.zeros(2))
        base = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(base, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(base, named_parameters=[("p", parameter)])
        state = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler)
        for step in range(1, STEPS):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
            scheduler.step()
            state.commit()
            state.restore()
            assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.5**step
            optimizer.load_state_dict(optimizer.state_dict())


def test_schedulers_of_the_optimizer_below_go_on_after_loading() -> None:
    ranks.run(of_schedulers, 2)


def of_scalers(rank: int, world_size: int) -> None:
    with horovod():
        net = nn.Linear(64, 64, bias=False)
        optimizer = optimizer_of(w=net.weight)
        scaler = farandole.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        for step in range(12):
            optimizer.zero_grad()
            factor = float("inf") if (step, rank) == (5, 1) else rank + 1.0
            scaler.scale(net.weight.sum() * factor).backward()
            before = net.weight.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            moved = 0.0 if step == 5 else means(world_size)
            if step != 5:
                assert torch.equal(net.weight.grad, torch.full((64, 64), moved))
            assert torch.equal(net.weight, before - moved)
        assert scaler.get_scale() == 2.0


def test_our_scaler_waits_for_gradients() -> None:
    ranks.run(of_scalers, 2)


def of_refused(rank: int, world_size: int) -> None:
    with horovod():
        with pytest.raises(farandole.InvalidArgument, match="named-overlap"):
            hvd.allreduce_(torch.ones(1).expand(4))
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
        with pytest.raises(farandole.NotSupported, match="quantized"):
            hvd.allreduce(quantized)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == world_size


def test_what_cannot_be_reduced_is_refused_before_it_is_sent() -> None:
    ranks.run(of_refused, 2)
