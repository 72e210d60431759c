# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer against the training of one process."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import Tensor, nn

import ranks
from horovod_session import horovod

WORLDS = [2, 3]
PER_RANK = 4


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    features = torch.randn(PER_RANK, 6, generator=generator)
    return features, features[:, :3].argmax(1)


def loss_of(model: nn.Module, step: int, some_ranks: list[int]) -> Tensor:
    losses = []
    for rank in some_ranks:
        features, labels = batch_of(step, rank)
        losses.append(nn.functional.cross_entropy(model(features), labels))
    return torch.stack(losses).mean()


def make(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained_alone(kind: str, world_size: int, passes: int, factor: float) -> nn.Module:
    """One process with the batches of all ranks."""
    model = model_of(0)
    optimizer = make(kind, model)
    for step in range(4):
        optimizer.zero_grad()
        for each in range(passes):
            (factor * loss_of(model, 10 * step + each, list(range(world_size)))).backward()
        optimizer.step()
    return model


def trained(rank: int, world_size: int, kind: str, passes: int, options: dict[str, Any]) -> None:
    options = dict(options)
    named = options.pop("named", True)
    listed = options.pop("listed", False)
    tolerance = options.pop("tolerance", 1e-6)
    with horovod():
        model = model_of(rank)
        optimizer = make(kind, model)
        if rank == 0:  # a state that the others do not have
            loss_of(model, 99, [0]).backward()
            optimizer.step()
            model.load_state_dict(model_of(0).state_dict())
            optimizer = make(kind, model)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        if listed:
            parameters = list(model.parameters())
            options["groups"] = [parameters[:2], [parameters[3], parameters[2]]]
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters() if named else None,
            backward_passes_per_step=passes,
            **options,
        )
        for step in range(4):
            optimizer.zero_grad()
            for each in range(passes):
                loss_of(model, 10 * step + each, [rank]).backward()
            optimizer.step()
        factor = float(world_size) if options.get("op") == hvd.Sum else 1.0
        alone = trained_alone(kind, world_size, passes, factor)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


OPTIONS: list[tuple[str, int, dict[str, Any]]] = [
    ("sgd", 1, {}),
    ("adam", 1, {"named": False}),
    ("sgd", 1, {"op": hvd.Sum}),
    ("sgd", 3, {}),
    ("adam", 2, {"groups": 2}),
    ("sgd", 1, {"groups": 3}),
    ("sgd", 2, {"listed": True}),
    ("sgd", 1, {"gradient_predivide_factor": 2.0}),
    ("sgd", 1, {"gradient_predivide_factor": 2.0, "groups": 1}),
    ("sgd", 1, {"compression": hvd.Compression.fp16, "tolerance": 2e-3}),
    ("sgd", 1, {"compression": hvd.Compression.bf16, "groups": 2, "tolerance": 2e-2}),
]


@pytest.mark.parametrize("world_size", WORLDS)
def test_training_is_that_of_one_process(world_size: int) -> None:
    ranks.run(trained_with_all, world_size)


def trained_with_all(rank: int, world_size: int) -> None:
    for kind, passes, options in OPTIONS:
        trained(rank, world_size, kind, passes, options)


def clipped(rank: int, world_size: int) -> None:
    with horovod():
        model, alone = model_of(0), model_of(0)
        optimizer = hvd.DistributedOptimizer(make("sgd", model), model.named_parameters())
        expected = make("sgd", alone)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, [rank]).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
            expected.zero_grad()
            loss_of(alone, step, list(range(world_size))).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            expected.step()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
        loss_of(model, 9, [rank]).backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match="combined twice"):
            optimizer.step()


def test_gradients_are_clipped_after_synchronize() -> None:
    ranks.run(clipped, 2)


def misused(rank: int, world_size: int) -> None:
    with horovod():
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(make("sgd", model), model.named_parameters())
        loss_of(model, 0, [rank]).backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        with pytest.raises(AssertionError, match="more than 1 times"):
            loss_of(model, 0, [rank]).backward()
        optimizer.synchronize()
        optimizer.zero_grad()
        plain = make("sgd", model)
        pairs = list(model.named_parameters())
        for wrong in (
            {"named_parameters": [*pairs, ("0.weight", pairs[1][1])]},
            {"named_parameters": pairs[1:]},
            {"named_parameters": list(model.parameters())},
            {"backward_passes_per_step": 0},
            {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
            {"gradient_predivide_factor": 0.0},
            {"backward_passes_per_step": 1.5},
            {"compression": "fp16"},
            {"groups": -1},
            {"groups": [["0.weight"]]},
            {"groups": [[pairs[0][1]], [pairs[0][1]]]},
        ):
            with pytest.raises(ValueError, match=r"optimizer got|DistributedOptimizer\(\):"):
                hvd.DistributedOptimizer(plain, **wrong)
        for wrapped in (optimizer, hvd.DistributedOptimizer(plain, pairs, op=hvd.Adasum)):
            with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
                hvd.DistributedOptimizer(wrapped, pairs)
        with pytest.raises(ValueError, match="LBFGS"):
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


def test_misuse() -> None:
    ranks.run(misused, 2)


class Branches(nn.Module):
    """Of which each rank uses another."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(6, 3) for _ in range(3)])

    def forward(self, features: Tensor, part: int) -> Tensor:
        result: Tensor = self.parts[part](features)
        return result


def unused(rank: int, world_size: int) -> None:
    with horovod():
        torch.manual_seed(0)
        model = Branches()
        alone = copy.deepcopy(model)
        optimizer = hvd.DistributedOptimizer(make("sgd", model), model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            part = (rank + step) % 3
            model(batch_of(step, rank)[0], part).sum().backward()
            optimizer.step()
        expected = make("sgd", alone)
        for step in range(3):
            expected.zero_grad()
            for each in alone.parameters():
                each.grad = torch.zeros_like(each)
            for each_rank in range(world_size):
                part = (each_rank + step) % 3
                (alone(batch_of(step, each_rank)[0], part).sum() / world_size).backward()
            expected.step()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("world_size", WORLDS)
def test_ranks_may_use_other_parameters(world_size: int) -> None:
    ranks.run(unused, world_size)


def sparse(rank: int, world_size: int) -> None:
    with horovod():
        for as_dense in (False, True):
            torch.manual_seed(0)
            table = nn.Embedding(10, 3, sparse=True)
            alone = copy.deepcopy(table)
            plain = torch.optim.SGD(table.parameters(), lr=0.5)
            optimizer = hvd.DistributedOptimizer(
                plain, table.named_parameters(), sparse_as_dense=as_dense
            )
            table(torch.tensor([rank, 5, 5])).sum().backward()
            optimizer.step()
            expected = torch.optim.SGD(alone.parameters(), lr=0.5)
            for each in range(world_size):
                (alone(torch.tensor([each, 5, 5])).sum() / world_size).backward()
            expected.step()
            torch.testing.assert_close(table.weight, alone.weight)


def test_sparse_gradients() -> None:
    ranks.run(sparse, 2)


def in_a_set(rank: int, world_size: int) -> None:
    with horovod():
        pair = hvd.add_process_set([0, 2])
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(
            make("sgd", model), model.named_parameters(), process_set=pair
        )
        loss_of(model, 0, [rank]).backward()
        optimizer.step()
        alone = model_of(0)
        loss_of(alone, 0, [0, 2] if rank != 1 else [1]).backward()
        make("sgd", alone).step()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_gradients_of_a_process_set() -> None:
    ranks.run(in_a_set, 3)


def by_adasum(rank: int, world_size: int) -> None:
    with horovod():
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
        )
        loss_of(model, 0, [rank]).backward()
        optimizer.step()
        changes = []
        for each in range(2):
            alone = model_of(0)
            loss_of(alone, 0, [each]).backward()
            changes.append([-0.1 * parameter.grad for parameter in alone.parameters()])
        start = model_of(0)
        for now, before, a, b in zip(model.parameters(), start.parameters(), *changes, strict=True):
            dot = (a * b).sum()
            change = (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b
            torch.testing.assert_close(now, before + change)
        with pytest.raises(NotImplementedError, match="skip_synchronize"):
            optimizer.skip_synchronize()


def test_adasum_combines_changes() -> None:
    ranks.run(by_adasum, 2)


def resumed(rank: int, world_size: int) -> None:
    with horovod():
        model = model_of(rank)
        optimizer = make("adam", model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        if rank == 1:
            loss_of(model, 0, [0]).backward()
            optimizer.step()
            scheduler.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 0.005
        state = hvd.allgather_object(optimizer.state_dict()["state"][0])
        assert torch.equal(state[0]["exp_avg"], state[1]["exp_avg"])
        assert state[0]["step"] == state[1]["step"] == 1
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        assert isinstance(wrapped, torch.optim.Adam)
        assert type(wrapped).__name__ == "Adam"
        assert wrapped.state_dict()["state"][0]["step"] == 1  # it goes on with the state
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
        assert wrapped.param_groups[0]["lr"] < 0.01
        wrapped.load_state_dict(copy.deepcopy(wrapped.state_dict()))
        later = torch.optim.lr_scheduler.StepLR(wrapped, 1, 0.5)
        rate = wrapped.param_groups[0]["lr"]
        before = [each.detach().clone() for each in model.parameters()]
        loss_of(model, 0, [rank]).backward()
        wrapped.step()
        later.step()
        assert wrapped.param_groups[0]["lr"] == rate / 2
        assert not torch.equal(before[0], next(model.parameters()))


def test_states_travel_and_stay() -> None:
    ranks.run(resumed, 2)


def normalized(rank: int, world_size: int) -> None:
    with horovod():
        norm, alone = hvd.SyncBatchNorm(3), nn.BatchNorm1d(3)
        parts = [
            torch.randn(4 + r, 3, generator=torch.Generator().manual_seed(r)) for r in range(2)
        ]
        own = parts[rank].clone().requires_grad_()
        everything = torch.cat(parts).requires_grad_()
        (norm(own) ** 3).sum().backward()
        (alone(everything) ** 3).sum().backward()
        assert everything.grad is not None
        expected = torch.split(everything.grad, [4, 5])[rank]
        torch.testing.assert_close(own.grad, expected)
        torch.testing.assert_close(norm.running_var, alone.running_var)


def test_batch_normalization() -> None:
    ranks.run(normalized, 2)
