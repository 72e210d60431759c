# SPDX-License-Identifier: Apache-2.0
"""Optimizers over several hosts whose shards lie on each host: ``shard_over="host"``."""

from __future__ import annotations

from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from torch import nn

import ranks

HOSTS = ranks.Setup(backend="hosts")
"""Ranks 0 and 2 on one host, 1 and 3 on another."""


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 5))


def bits_of(net: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(net.parameters()).double().tolist()


def step(model: nn.Module, optimizer: ZeroRedundancyOptimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(6, 12, generator=generator)).square().mean().backward()
    optimizer.step()


def trained(
    rank: int,
    world_size: int,
    optimizer_class: Any,
    shard_over: Any,
    dtype: torch.dtype,
    **options: Any,
) -> tuple[list[float], int]:
    del rank, world_size
    net = mlp().to(dtype)
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class, lr=0.01, shard_over=shard_over, **options
    )
    for number in range(4):
        generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
        optimizer.zero_grad()
        inputs = torch.randn(6, 12, generator=generator).to(dtype)
        model(inputs).square().mean().backward()
        optimizer.step()
    return bits_of(net), optimizer.state_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.RMSprop])
def test_the_bits_of_shards_over_all_ranks(optimizer_class: Any, dtype: torch.dtype) -> None:
    runs = {
        over: ranks.run(trained, 4, optimizer_class, over, dtype, setup=HOSTS)
        for over in ("world", "host")
    }
    for (parameters, _), (expected, _) in zip(runs["host"], runs["world"], strict=True):
        assert parameters == expected
    on_hosts, once = (sum(state for _, state in runs[over]) for over in ("host", "world"))
    assert 1.8 * once < on_hosts <= 2 * once  # the smaller shards are padded more


def test_whole_parameters_and_norms_are_the_same_on_all_hosts() -> None:
    for optimizer_class in (farandole.optim.LAMB, torch.optim.Adafactor):
        results = ranks.run(trained, 4, optimizer_class, "host", torch.float32, setup=HOSTS)
        for parameters, _ in results[1:]:
            assert parameters == results[0][0]


def clips_and_scales(rank: int, world_size: int) -> tuple[list[float], list[float]]:
    del world_size
    net = mlp()
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, shard_over="host"
    )
    scaler = farandole.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    norms = []
    for number in range(5):
        generator = torch.Generator().manual_seed(100 * number + rank)
        inputs = torch.randn(6, 12, generator=generator)
        if number == 2 and rank == 3:
            inputs[0] = float("inf")
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.unscale_(optimizer)
        norms.append(float(optimizer.clip_grad_norm_(0.5)))
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 8.0  # grown twice, halved once
    return norms, bits_of(net)


def test_clipping_and_scaling_agree_over_hosts() -> None:
    results = ranks.run(clips_and_scales, 4, setup=HOSTS)
    assert len({str(result) for result in results}) == 1  # also NaN is itself there


def saves_and_loads(rank: int, world_size: int) -> None:
    def made() -> tuple[nn.Module, ZeroRedundancyOptimizer]:
        model = DistributedDataParallel(mlp())
        return model, ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, lr=0.01, shard_over="host"
        )

    model, optimizer = made()
    assert (optimizer.rank, optimizer.world_size) == (rank, world_size)
    for number in range(3):
        step(model, optimizer, number)
    optimizer.consolidate_state_dict(to=3)  # of the second host
    if rank != 3:
        with pytest.raises(farandole.InvalidArgument, match="consolidate_state_dict"):
            optimizer.state_dict()
    saved = [optimizer.state_dict() if rank == 3 else None]
    farandole.broadcast_object_list(saved, src=3)
    other, resumed = made()
    other.load_state_dict(model.state_dict())
    assert saved[0] is not None
    resumed.load_state_dict(saved[0])
    step(model, optimizer, 3)
    step(other, resumed, 3)
    resumed.rebuild()
    step(model, optimizer, 4)
    step(other, resumed, 4)
    for parameter, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_save_load_and_rebuild() -> None:
    ranks.run(saves_and_loads, 4, setup=HOSTS)


def other_arguments_on_one_host(rank: int, world_size: int) -> None:
    del world_size
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, shard_over="host"
    )
    step(model, optimizer, 0)
    optimizer.param_groups[0]["lr"] = 0.2 if rank % 2 else 0.1
    with pytest.raises(farandole.StepError, match="lr"):
        step(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.1

    def fails() -> float:
        raise ValueError("no batch")

    if rank == 3:
        with pytest.raises(ValueError, match="no batch"):
            optimizer.step(fails)
    else:
        with pytest.raises(farandole.StepError, match="rank 3"):
            optimizer.step()
    step(model, optimizer, 2)


def test_an_error_on_one_host_is_one_on_all() -> None:
    ranks.run(other_arguments_on_one_host, 4, setup=HOSTS)


def refused(rank: int, world_size: int, match: str, options: dict[str, Any]) -> None:
    del rank, world_size
    model = DistributedDataParallel(mlp())
    with pytest.raises(farandole.Error, match=match):
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, **options)


@pytest.mark.parametrize(
    ("world_size", "backend", "match", "options"),
    [
        (3, "hosts", "2 ranks and a CPU .* rank 1 has 1 ranks", {"shard_over": "host"}),
        (2, "gloo", "another backend", {"shard_over": "host"}),
        (2, "hosts", "averages over the ranks", {"shard_over": "host", "gradients": "shard"}),
        (2, "farandole", "shard_over='node'", {"shard_over": "node"}),
    ],
)
def test_what_cannot_be(world_size: int, backend: str, match: str, options: dict[str, Any]) -> None:
    ranks.run(refused, world_size, match, options, setup=ranks.Setup(backend=backend))


def test_one_host_is_as_without_it() -> None:
    for over in ("world", "host"):
        results = ranks.run(trained, 2, torch.optim.AdamW, over, torch.float32, setup=ranks.Setup())
        if over == "world":
            expected = results
    for (parameters, state), (others, bytes_there) in zip(results, expected, strict=True):
        assert state == bytes_there
        assert parameters == others
