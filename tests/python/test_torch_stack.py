# SPDX-License-Identifier: Apache-2.0
"""What torch builds on torch.distributed works over Farandole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import ranks


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def full(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.full_tensor()


def fsdp(rank: int, world_size: int, symmetric: bool) -> None:
    mesh = init_device_mesh("cpu", (world_size,))
    sharded, plain = model_of(0), model_of(0)
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded.set_allocate_memory_from_process_group_for_comm(symmetric)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (sharded, plain)]
    torch.manual_seed(1)
    batches = torch.randn(3, world_size, 2, 8)
    for batch in batches:
        sharded(batch[rank]).square().mean().backward()
        for part in batch:
            (plain(part).square().mean() / world_size).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for own, expected in zip(sharded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(full(own), expected)


@pytest.mark.parametrize("symmetric", [False, True])
def test_fsdp2(symmetric: bool) -> None:
    ranks.run(fsdp, 2, symmetric)


def fsdp_bf16(rank: int, world_size: int) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = model_of(0)
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)), mp_policy=policy)
    model(torch.full((2, 8), float(rank))).sum().backward()
    assert all(full(p.grad).isfinite().all() for p in model.parameters())


def test_fsdp2_with_mixed_precision() -> None:
    ranks.run(fsdp_bf16, 2)


def meshes(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    row = torch.tensor([float(rank)])
    dist.all_reduce(row, group=mesh.get_group("shard"))
    assert row.item() == (1.0 if rank < 2 else 5.0)
    column = torch.tensor([float(rank)])
    dist.all_reduce(column, group=mesh.get_group("replicate"))
    assert column.item() == (2.0 if rank % 2 == 0 else 4.0)
    whole = torch.arange(32.0).view(8, 4)
    placed = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    assert placed.to_local().shape == (4, 4)
    assert torch.equal(placed.redistribute(mesh, [Replicate(), Shard(1)]).full_tensor(), whole)
    assert torch.equal((placed @ placed.t()).full_tensor(), whole @ whole.t())
    hybrid = model_of(0)
    fully_shard(hybrid, mesh=mesh)  # shards in a row, averages over the columns
    hybrid(torch.ones(2, 8)).sum().backward()


def test_device_mesh_and_tensors_on_it() -> None:
    ranks.run(meshes, 4)


def functions(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    own = torch.full((4,), float(rank))
    total = sum(range(world_size))
    assert functional.all_reduce(own, "sum", group)[0].item() == total
    assert own[0].item() == rank
    gathered = functional.all_gather_tensor(own, 0, group)
    assert torch.equal(gathered[::4], torch.arange(float(world_size)))
    part = functional.reduce_scatter_tensor(gathered, "avg", 0, group)
    assert torch.equal(part, own)
    sends, receives = ([1, 3], [1, 2]) if rank == 0 else ([2, 2], [3, 2])
    source = torch.arange(4.0) + 10 * rank
    sent = functional.all_to_all_single(source, receives, sends, group)
    assert sent.tolist() == ([0, 10, 11] if rank == 0 else [1, 2, 3, 12, 13])
    assert functional.broadcast(own, 1, group)[0].item() == 1
    both = functional.all_reduce_coalesced([own, own + 1], "sum", group)
    assert both[1][0].item() == total + world_size


def test_functional_collectives() -> None:
    ranks.run(functions, 2)


def compiled(rank: int, world_size: int) -> None:
    def step(tensor: Tensor) -> Tensor:
        doubled = tensor * 2
        dist.all_reduce(doubled)
        return functional.all_gather_tensor(doubled + 1, 0, dist.group.WORLD)

    total = 2 * sum(range(world_size))
    for backend in ("eager", "aot_eager"):
        result = torch.compile(step, backend=backend, fullgraph=True)(torch.full((3,), float(rank)))
        assert torch.equal(result, torch.full((3 * world_size,), total + 1.0))


def test_torch_compile_around_collectives() -> None:
    ranks.run(compiled, 2)


def saved(rank: int, world_size: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (world_size,))
    first, second = model_of(0), model_of(1)
    for model in (first, second):
        fully_shard(model, mesh=mesh)
    checkpoint.save({"model": first.state_dict(), "step": 7}, checkpoint_id=folder)
    state = {"model": second.state_dict(), "step": 0}
    checkpoint.load(state, checkpoint_id=folder)
    second.load_state_dict(state["model"])
    assert state["step"] == 7
    for own, expected in zip(second.parameters(), first.parameters(), strict=True):
        assert torch.equal(full(own), full(expected))
    work = checkpoint.async_save({"rank": torch.tensor([rank])}, checkpoint_id=folder + "/async")
    work.result(timeout=30)


def test_distributed_checkpoint(tmp_path: Path) -> None:
    setup = ranks.Setup(backend="cpu:farandole")
    ranks.run(saved, 2, str(tmp_path), setup=setup)


def differentiated(rank: int, world_size: int) -> None:
    own = torch.full((3,), float(rank + 1), requires_grad=True)
    differentiable.all_reduce(own * own).sum().backward()
    assert torch.equal(own.grad, torch.full((3,), 2.0 * (rank + 1) * world_size))
    own.grad = None
    torch.stack(differentiable.all_gather(own)).sum().backward()
    assert torch.equal(own.grad, torch.full((3,), float(world_size)))
    own.grad = None
    gathered = functional.all_gather_tensor_autograd(own, 0, dist.group.WORLD)
    gathered.backward(torch.ones(3 * world_size))
    assert torch.equal(own.grad, torch.full((3,), float(world_size)))
    inputs = [torch.full((2,), 1.0, requires_grad=True) for _ in range(world_size)]
    outputs = differentiable.all_to_all([torch.empty(2) for _ in range(world_size)], inputs)
    torch.stack(list(outputs)).sum().backward()
    assert torch.equal(inputs[0].grad, torch.ones(2))


def test_collectives_that_autograd_knows() -> None:
    ranks.run(differentiated, 2)


def pipelined(rank: int, world_size: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 6) for _ in range(world_size)]
    source = torch.randn(8, 6)
    stage = PipelineStage(layers[rank], rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4)
    output = schedule.step(source) if rank == 0 else schedule.step()
    if rank == world_size - 1:
        torch.testing.assert_close(output, torch.nn.Sequential(*layers)(source))


def test_pipeline_parallelism_over_send_and_recv() -> None:
    ranks.run(pipelined, 2)
