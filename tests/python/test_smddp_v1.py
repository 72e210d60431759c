# SPDX-License-Identifier: Apache-2.0
"""SMDDP's first version by its own names: ranks, collectives and DistributedDataParallel."""

from __future__ import annotations

import copy
import os
from typing import Any

import farandole
import pytest
import torch
from farandole_compat import finder
from torch import nn

import ranks

OF_THE_BODY = ranks.Setup(backend=None)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator)


def launched(rank: int, world_size: int, folder: str) -> Any:
    """SMDDP's module, in a process that looks as a launcher would have it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    finder.install()
    import smdistributed.dataparallel.torch.distributed as dist

    assert dist.is_available()
    assert not dist.is_initialized()
    method = f"file://{folder}/store"
    # Whatever backend such a script names, there was one.
    dist.init_process_group("nccl", init_method=method, rank=rank, world_size=world_size)
    assert dist.is_initialized()
    return dist


def collectives(rank: int, world_size: int, folder: str) -> None:
    dist = launched(rank, world_size, folder)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_local_rank()) == (rank, 2, rank)
    assert dist.get_rank(group=dist.group.WORLD) == rank
    results = {}
    for op in ("SUM", "AVERAGE", "MIN", "MAX"):
        tensor = torch.tensor([1.0 + rank, 5.0 - rank])
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op), group=dist.group.WORLD)
        results[op] = tensor.tolist()
    assert results == {"SUM": [3, 9], "AVERAGE": [1.5, 4.5], "MIN": [1, 4], "MAX": [2, 5]}

    tensor = torch.full((2,), float(rank))
    dist.broadcast(tensor, 1, dist.group.WORLD, True).wait()
    assert tensor.tolist() == [1, 1]
    parts = [torch.empty(2) for _ in range(2)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [each.tolist() for each in parts] == [[0, 0], [1, 1]]
    output = torch.empty(3 if rank == 0 else 1)
    dist.all_to_all_single(
        output_t=output,
        input_t=torch.arange(2.0) + 10 * rank,
        output_split_sizes=[1, 2] if rank == 0 else [1, 0],
        input_split_sizes=[1, 1] if rank == 0 else [2, 0],
    )
    assert output.tolist() == ([0, 10, 11] if rank == 0 else [1])
    dist.barrier(dist.group.WORLD, async_op=True).wait()
    assert os.environ["SMDATAPARALLEL_LOCAL_RANK"] == str(rank)


def test_collectives(tmp_path: object) -> None:
    ranks.run(collectives, 2, str(tmp_path), setup=OF_THE_BODY)


def trained(rank: int, world_size: int, folder: str) -> dict[str, list[float]]:
    """Train three steps; within the second, a pass under no_sync()."""
    launched(rank, world_size, folder)
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Short
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

    assert Short is DistributedDataParallel
    # As the positions were: device_ids, output_device, broadcast_buffers, process_group, cap.
    model = DistributedDataParallel(net(), None, None, False, None, 25)
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
    assert not model.broadcast_buffers
    assert DistributedDataParallel(net(), process_group=torch.distributed.group.WORLD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        if step == 1:
            with model.no_sync():
                model(batch(rank, 7)).square().mean().backward()
        model(batch(rank, step)).square().mean().backward()
        optimizer.step()
    return {name: p.flatten().tolist() for name, p in model.module.named_parameters()}


def alone() -> dict[str, list[float]]:
    """The same in one process: each rank's batches have their own statistics."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            for each in [7, 1] if step == 1 else [step]:
                (model(batch(rank, each)).square().mean() / 2).backward()
        optimizer.step()
    return {name: p.flatten().tolist() for name, p in model.named_parameters()}


def test_a_training_is_that_of_one_process(tmp_path: object) -> None:
    first, second = ranks.run(trained, 2, str(tmp_path), setup=OF_THE_BODY)
    assert first == second
    for name, wanted in alone().items():
        assert first[name] == pytest.approx(wanted, rel=1e-12, abs=1e-14)


def accumulated(rank: int, world_size: int) -> list[list[float]]:
    """p.grad of one parameter after each of five passes, the fourth within no_sync()."""
    from farandole.sagemaker.distributed_data_parallel import DistributedDataParallel

    weight = nn.Linear(1, 1, bias=False)
    nn.init.ones_(weight.weight)
    model = DistributedDataParallel(weight, gradient_accumulation_steps=3)
    seen = []
    for step in range(7):
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 1))  # does not count
        model.train()
        if step == 6:
            with model.no_sync():
                model(torch.full((1, 1), 1.0 + rank)).sum().backward()
        else:
            model(torch.full((1, 1), 1.0 + rank)).sum().backward()
        seen.append(weight.weight.grad.flatten().tolist())
        if step == 2:
            model.zero_grad()
    return seen


def test_every_third_backward_averages() -> None:
    first, second = ranks.run(accumulated, 2)
    assert first == [[1], [2], [4.5], [1], [2], [4.5], [5.5]]
    assert second == [[2], [4], [4.5], [2], [4], [4.5], [6.5]]


def copied(rank: int, world_size: int) -> None:
    model = farandole.DistributedDataParallel(nn.Linear(1, 1), gradient_accumulation_steps=2)
    again = copy.deepcopy(model)
    for each in (model, again):
        for _ in range(2):
            each(torch.full((1, 1), 1.0 + rank)).sum().backward()
        assert each.module.weight.grad.item() == 3.0
    with pytest.raises(farandole.InvalidArgument, match=r"accumulation-steps"):
        farandole.DistributedDataParallel(nn.Linear(1, 1), gradient_accumulation_steps=0)


def test_a_copy_accumulates_too() -> None:
    ranks.run(copied, 2)


def test_without_a_launcher_it_is_not_available() -> None:
    finder.install()
    import smdistributed.dataparallel.torch.distributed as dist

    assert not dist.is_available()
    assert not farandole.is_launched()


def alone_with_variables(rank: int, world_size: int) -> None:
    import logging

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("farandole").addHandler(handler)
    finder.install()
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    (line,) = [each for each in lines if "SMDDP" in each]
    assert line.endswith("without effect on Farandole: SMDATAPARALLEL_OPTIMIZE_SDP, SMDDP_X")
    assert os.environ["SMDATAPARALLEL_LOCAL_RANK"] == "0"
    assert "RANK" not in os.environ


def test_variables_without_effect_are_named() -> None:
    variables = {"SMDATAPARALLEL_OPTIMIZE_SDP": "true", "SMDDP_X": "1"}
    ranks.run(alone_with_variables, 1, setup=ranks.Setup(backend=None, env=variables))
