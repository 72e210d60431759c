# SPDX-License-Identifier: Apache-2.0
"""farandole.SyncBatchNorm against torch's batch normalization of the whole batch."""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, SyncBatchNorm
from torch import Tensor, nn

import ranks
from ddp_models import Convolutional
from ddp_oracle import batch, seeded

TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


def parts(world_size: int, step: int, *shape: int) -> list[Tensor]:
    """Batches of different sizes; the last rank's is empty in step 2."""
    sizes = [2 + (rank + step) % 3 for rank in range(world_size)]
    if step == 2:
        sizes[-1] = 0
    return [batch(rank, step, size, *shape) for rank, size in enumerate(sizes)]


def like_torchs(rank: int, world_size: int) -> None:
    cases: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({}, (3, 4, 4)),
        ({"momentum": None}, (3, 5)),
        ({"affine": False, "eps": 0.1}, (3,)),
        ({"track_running_stats": False}, (3, 2, 2, 2)),
        ({"momentum": 0.7}, (3, 4)),
    ]
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    for options, shape in cases:
        reference = kinds[len(shape) + 1](3, **options).double()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.copy_(batch(99, 0, 3))
        norm = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
        assert isinstance(norm, SyncBatchNorm)
        for step in range(4):
            batches = parts(world_size, step, *shape)
            whole = torch.cat(batches).requires_grad_()
            own = batches[rank].clone().requires_grad_()
            wanted = reference(whole)
            output = norm(own)
            first = sum(len(part) for part in batches[:rank])
            mine = slice(first, first + len(own))
            torch.testing.assert_close(output, wanted[mine], **TOLERANCE)
            scale = torch.arange(wanted.numel(), dtype=torch.float64).view_as(wanted)
            (wanted * scale).sum().backward()
            (output * scale[mine]).sum().backward()
            torch.testing.assert_close(own.grad, whole.grad[mine], rtol=1e-8, atol=1e-8)
            for name, parameter in norm.named_parameters():
                gradient = parameter.grad
                dist.all_reduce(gradient)
                other = reference.get_parameter(name).grad
                torch.testing.assert_close(gradient, other, rtol=1e-8, atol=1e-8)
            norm.zero_grad()
            reference.zero_grad()
            for name, buffer in norm.named_buffers():
                torch.testing.assert_close(buffer, reference.get_buffer(name), **TOLERANCE)
        norm.eval()
        reference.eval()
        x = batch(rank, 7, 4, *shape)
        torch.testing.assert_close(norm(x), reference(x), **TOLERANCE)


def low_precision(rank: int, world_size: int) -> None:
    norm = SyncBatchNorm(3)
    x = batch(rank, 0, 4, 3).bfloat16().requires_grad_()
    output = norm(x)
    output.sum().backward()
    assert output.dtype == x.grad.dtype == torch.bfloat16
    assert norm.running_mean.dtype == norm.weight.grad.dtype == torch.float32


def converted_model(rank: int, world_size: int) -> None:
    """With the wrapper: the gradients of one process that sees the whole batch."""
    model = seeded(Convolutional)
    alone = copy.deepcopy(model)
    model = SyncBatchNorm.convert_sync_batchnorm(model)
    assert list(model.state_dict()) == list(alone.state_dict())
    ddp = DistributedDataParallel(model)
    assert ddp._get_ddp_logging_data()["has_sync_bn"] == 1
    for step in range(3):
        whole = torch.cat([batch(r, step, 4, 192) for r in range(world_size)])
        alone.zero_grad()
        alone(whole).square().mean().backward()
        ddp.zero_grad()
        ddp(batch(rank, step, 4, 192)).square().mean().backward()
        for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own.grad, wanted.grad, rtol=1e-8, atol=1e-10)
        for own, wanted in zip(model.buffers(), alone.buffers(), strict=True):
            torch.testing.assert_close(own, wanted, **TOLERANCE)


def parts_frozen(rank: int, world_size: int) -> None:
    x = batch(rank, 0, 4, 3)
    norm = SyncBatchNorm(3).double()
    norm(x).square().sum().backward()
    for frozen, other in (("weight", "bias"), ("bias", "weight")):
        again = SyncBatchNorm(3).double()
        again.get_parameter(frozen).requires_grad_(False)
        again(x).square().sum().backward()
        assert again.get_parameter(frozen).grad is None
        assert torch.equal(again.get_parameter(other).grad, norm.get_parameter(other).grad)


def weighted(rank: int, world_size: int) -> None:
    """Batches of different sizes that count by their items, also accumulated ones."""
    model = seeded(Convolutional)
    alone = copy.deepcopy(model)
    ddp = DistributedDataParallel(SyncBatchNorm.convert_sync_batchnorm(model))
    passes = 2
    for step in range(2):
        alone.zero_grad()
        ddp.zero_grad()
        batches = [
            [batch(r, step * passes + k, 2 + 3 * r + k, 192) for r in range(world_size)]
            for k in range(passes)
        ]
        total = sum(len(each) for of_pass in batches for each in of_pass)
        for k, of_pass in enumerate(batches):
            whole = alone(torch.cat(of_pass))
            (whole.square().mean(1).sum() / total).backward()
            with contextlib.nullcontext() if k == passes - 1 else ddp.no_sync():
                ddp.set_loss_weight(len(of_pass[rank]))
                ddp(of_pass[rank]).square().mean().backward()
        for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own.grad, wanted.grad, rtol=1e-8, atol=1e-10)
    # A copy belongs to no wrapper, nor does a layer whose wrapper is gone.
    copied = copy.deepcopy(ddp.module)
    ddp.zero_grad()
    del ddp
    gc.collect()
    x = batch(rank, 9, 4, 192)
    for net in (copied, model):
        net.zero_grad()
        (net(x).square().mean() * (rank + 1)).backward()
    for own, wanted in zip(copied.parameters(), model.parameters(), strict=True):
        assert torch.equal(own.grad, wanted.grad)


def run_checks(rank: int, world_size: int) -> None:
    weighted(rank, world_size)
    like_torchs(rank, world_size)
    low_precision(rank, world_size)
    parts_frozen(rank, world_size)
    converted_model(rank, world_size)


@pytest.mark.parametrize(("backend", "world_size"), [("farandole", 3), ("hosts", 2), ("gloo", 2)])
def test_it_normalizes_the_whole_batch(backend: str, world_size: int) -> None:
    ranks.run(run_checks, world_size, setup=ranks.Setup(backend=backend))


def test_alone_it_is_plain_batch_normalization() -> None:
    norm, reference = SyncBatchNorm(3), nn.BatchNorm2d(3)
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(norm(x), reference(x))
    assert torch.equal(norm.running_var, reference.running_var)
    with pytest.raises(farandole.InvalidArgument, match="at least 2 dimensions"):
        norm(torch.ones(3))
    frozen = nn.BatchNorm1d(3).eval().requires_grad_(False)
    converted = SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(frozen))[0]
    assert not converted.training
    assert not converted.weight.requires_grad
