# SPDX-License-Identifier: Apache-2.0
"""Programs written for torch.distributed run with farandole's functions in their place."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist

import ranks


def init(rank: int, world_size: int, store: str) -> None:
    place = dist.FileStore(store, world_size)
    group = farandole.init_process_group(
        "farandole",
        store=place,
        rank=rank,
        world_size=world_size,
        timeout=30,
        group_name="",
        pg_options=None,
        device_id=torch.device("cpu"),
    )
    assert group is dist.group.WORLD
    assert farandole.init_process_group(backend="Farandole") is group
    assert farandole.get_backend() == "farandole"
    assert (farandole.get_rank(), farandole.get_world_size()) == (rank, world_size)
    farandole.destroy_process_group()
    assert not farandole.is_initialized()


def test_init_takes_torchs_arguments(tmp_path: Path) -> None:
    ranks.run(init, 2, str(tmp_path / "store"), setup=ranks.Setup(backend=None))


def test_init_has_torchs_arguments_in_torchs_order() -> None:
    ours = list(inspect.signature(farandole.init_process_group).parameters)
    theirs = [
        name
        for name in inspect.signature(dist.init_process_group).parameters
        if not name.startswith("_")
    ]
    assert ours == theirs[: len(ours)]


def check_text(error: BaseException) -> None:
    assert "\nwhy: " in str(error)
    assert "\nfix: " in str(error)
    assert "incompatible function" not in str(error)


WRONG_INIT: list[tuple[str, dict[str, Any]]] = [
    (r"(?s)backend 'gloo'.*torch.distributed.init_process_group\(\)", {"backend": "gloo"}),
    ("backend 'tcp://localhost:1'.*\n.*\n.*init_method=", {"backend": "tcp://localhost:1"}),
    ("type int as init_method", {"init_method": 3}),
    ("type str as store", {"store": "here"}),
    ("type object as pg_options", {"pg_options": object()}),
    ("type str as device_id", {"device_id": "cpu"}),
    ("'1' of type str as rank", {"rank": "1"}),
    ("type str as timeout", {"timeout": "1"}),
    ("got -1 of type int as timeout", {"timeout": -1}),
    ("as timeout", {"timeout": float("nan")}),
    ("as timeout", {"timeout": 1e300}),
    ("rank -1 and world_size 2", {"world_size": 2, "store": dist.HashStore()}),
    ("init_method 'here'", {"init_method": "here", "rank": 0, "world_size": 1}),
    ("both a store and", {"init_method": "tcp://x:1", "store": dist.HashStore()}),
    ("no place to meet", {"rank": 0, "world_size": 2}),
]


@pytest.mark.parametrize(("match", "given"), WRONG_INIT, ids=[row[0] for row in WRONG_INIT])
def test_init_refuses_what_it_cannot_take(
    match: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(farandole.InvalidArgument, match=match) as caught:
        farandole.init_process_group(**given)
    check_text(caught.value)
    assert not farandole.is_initialized()


def lists(rank: int, world_size: int) -> None:
    own = torch.tensor([float(rank)])
    everyone = [torch.tensor([float(each)]) for each in range(world_size)]
    parts = [torch.empty(1) for _ in range(world_size)]
    farandole.all_gather(parts, own)
    assert parts == everyone
    parts = [torch.empty(1) for _ in range(world_size)]
    farandole.all_gather(tensor_list=parts, tensor=own, async_op=True).wait()
    assert parts == everyone
    farandole.reduce_scatter(part := torch.empty(1), parts, dist.ReduceOp.SUM)
    assert part.item() == rank * world_size
    farandole.reduce_scatter(part, input_list=parts, op="max")
    assert part.item() == rank
    sends = [torch.tensor([10.0 * rank + each]) for each in range(world_size)]
    farandole.all_to_all(parts, sends)
    assert [each.item() for each in parts] == [10.0 * each + rank for each in range(world_size)]
    last = world_size - 1
    gathered = [torch.empty(1) for _ in range(world_size)] if rank == last else None
    farandole.gather(own, gathered, dst=last)
    assert gathered is None or gathered == everyone
    farandole.gather(own, gather_list=gathered, group_dst=last)
    farandole.scatter(part, gathered, last)
    assert part.item() == rank
    farandole.scatter(part, scatter_list=gathered, src=last)
    assert part.item() == rank


def roots(rank: int, world_size: int) -> None:
    last = world_size - 1
    for call in (
        lambda t: farandole.broadcast(t, last),
        lambda t: farandole.broadcast(t, src=last),
        lambda t: farandole.broadcast(t, group_src=last),
        lambda t: farandole.broadcast(t, root=last),
    ):
        tensor = torch.tensor([float(rank)])
        call(tensor)
        assert tensor.item() == last
    tensor = torch.tensor([float(rank)])
    farandole.reduce(tensor, last, dist.ReduceOp.MAX)
    assert tensor.item() == rank
    farandole.all_reduce(tensor, "max", farandole.default_group())
    assert tensor.item() == last
    tail = farandole.new_group(list(range(1, world_size)), 30.0, backend="farandole")
    if rank > 0:
        assert tail is not None
        tensor = torch.tensor([float(rank)])
        farandole.broadcast(tensor, src=1, group=tail)  # rank 0 of it
        assert tensor.item() == 1
        with pytest.raises(farandole.InvalidArgument, match="src=0, which is not a rank") as caught:
            farandole.broadcast(tensor, src=0, group=tail)
        check_text(caught.value)
    if rank == 0:
        farandole.send(torch.ones(1), dst=1, tag=4)
        farandole.isend(torch.ones(1), 1).wait()
    elif rank == 1:
        farandole.recv(torch.empty(1), src=0, tag=4)
        farandole.irecv(torch.empty(1), 0).wait()
    farandole.barrier(farandole.default_group(), False, device_ids=[0])
    farandole.monitored_barrier(None, 20.5)


def objects(rank: int, world_size: int) -> None:
    found: list[Any] = [None] * world_size
    farandole.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": each} for each in range(world_size)]
    gathered: list[Any] | None = [None] * world_size if rank == 0 else None
    farandole.gather_object(rank, gathered, dst=0)
    assert gathered is None or gathered == list(range(world_size))
    sent = ["a", rank] if rank == 1 else [None, None]
    farandole.broadcast_object_list(sent, src=1)
    assert sent == ["a", 1]
    mine: list[Any] = [None]
    farandole.scatter_object_list(mine, [[each] for each in range(world_size)], src=0)
    assert mine == [[rank]]
    if rank == 0:
        farandole.send_object_list(["x"], dst=1)
    elif rank == 1:
        farandole.recv_object_list(mine, src=0)
        assert mine == ["x"]
    assert farandole.get_global_rank(farandole.group.WORLD, 1) == 1
    operations = [
        farandole.P2POp(farandole.isend, torch.ones(1), (rank + 1) % world_size),
        farandole.P2POp(farandole.irecv, torch.empty(1), (rank - 1) % world_size),
    ]
    for work in farandole.batch_isend_irecv(operations):
        work.wait()
    flat = torch.empty(world_size)
    farandole.all_gather_into_tensor(flat, torch.tensor([float(rank)]))
    farandole.reduce_scatter_tensor(torch.empty(1), flat, farandole.ReduceOp.SUM)
    farandole.all_to_all_single(torch.empty(world_size), flat, None, None)


def test_lists_roots_and_objects_as_torch_takes_them() -> None:
    ranks.run(drop_in, 3)


def drop_in(rank: int, world_size: int) -> None:
    lists(rank, world_size)
    roots(rank, world_size)
    objects(rank, world_size)


def wrong_types(rank: int, world_size: int) -> None:
    del rank
    one, many = torch.ones(1), torch.ones(world_size)
    thing: Any = object()
    huge = 2**40
    calls = [
        *(lambda f=f: f(thing) for f in (farandole.all_reduce, farandole.broadcast)),
        *(lambda f=f: f(thing, 1) for f in (farandole.send, farandole.recv)),
        lambda: farandole.all_reduce([one]),
        lambda: farandole.all_reduce(one, thing),
        lambda: farandole.all_reduce(one, op=7),
        lambda: farandole.all_reduce(one, group="world"),
        lambda: farandole.all_reduce(one, group=dist.GroupMember.NON_GROUP_MEMBER),
        lambda: farandole.broadcast(one, "0"),
        lambda: farandole.broadcast(one, root=huge),
        lambda: farandole.broadcast(one, src=0, root=0),
        lambda: farandole.broadcast(one, src=99),
        lambda: farandole.reduce(one, dst=1.5),
        lambda: farandole.all_gather(thing, one),
        lambda: farandole.all_gather([one], one),
        lambda: farandole.all_gather([one, 3], one),
        lambda: farandole.all_gather(many, tensor=one, input=one),
        lambda: farandole.all_gather(many, None),
        lambda: farandole.reduce_scatter(one, [one]),
        lambda: farandole.reduce_scatter(one, 3),
        lambda: farandole.gather(None, None),
        lambda: farandole.gather(one, "x"),
        lambda: farandole.scatter(one, "x"),
        lambda: farandole.all_to_all([one] * world_size, many),
        lambda: farandole.all_to_all(many, many, output_splits="11"),
        lambda: farandole.all_to_all(many, many, output_splits=[0.5]),
        lambda: farandole.barrier(3),
        lambda: farandole.monitored_barrier(timeout="soon"),
        lambda: farandole.monitored_barrier(timeout=0),
        lambda: farandole.send(one),
        lambda: farandole.send(one, 1, tag="x"),
        lambda: farandole.send(one, huge),
        lambda: farandole.recv(one, "x"),
        lambda: farandole.source_rank(3),
        lambda: farandole.symmetric_empty("x"),
        lambda: farandole.symmetric_empty(2, dtype="float32"),
        lambda: farandole.new_group("01"),
        lambda: farandole.new_group([0, 99]),
        lambda: farandole.new_group(backend="gloo"),
        lambda: farandole.new_group([0.5]),
        lambda: farandole.new_group(pg_options=3),
        lambda: farandole.shrink_group(["x"]),
        lambda: farandole.shrink_group([0], min_ranks="all"),
        *(
            lambda f=f: f(thing)
            for f in (
                farandole.rank,
                farandole.world_size,
                farandole.local_rank,
                farandole.local_world_size,
                farandole.abort,
                farandole.destroy,
            )
        ),
        lambda: farandole.all_gather([many.to(torch.complex64).conj()] * world_size, one),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except farandole.InvalidArgument as error:
            check_text(error)
        else:
            pytest.fail(f"call {number} went well")
    farandole.all_reduce(one)  # nothing was sent, and the group is usable
    assert one.item() == world_size


def test_wrong_types_are_typed_errors_in_three_parts() -> None:
    ranks.run(wrong_types, 2)


def wrong_objects(rank: int, world_size: int) -> None:
    del rank, world_size
    net, thing = torch.nn.Linear(2, 2), object()
    ddp = farandole.DistributedDataParallel(torch.nn.Linear(2, 2))
    scaler = farandole.GradScaler()
    sgd = torch.optim.SGD
    calls = [
        lambda: farandole.DistributedDataParallel(thing),
        lambda: farandole.DistributedDataParallel(net, process_group="world"),
        lambda: farandole.DistributedDataParallel(net, bucket_cap_mb="25"),
        lambda: farandole.DistributedDataParallel(net, bucket_cap_mb_list=[1, "2"]),
        lambda: farandole.DistributedDataParallel(net, bucket_cap_mb_list=3),
        lambda: farandole.DistributedDataParallel(net, wire_dtype=3),
        lambda: ddp.set_loss_weight("1"),
        lambda: ddp.set_process_group("world"),
        lambda: farandole.GradScaler(init_scale="1"),
        lambda: farandole.GradScaler(growth_factor=None),
        lambda: farandole.GradScaler(growth_interval=0.5),
        lambda: scaler.update("2"),
        lambda: scaler.set_growth_factor("2"),
        lambda: scaler.set_backoff_factor(None),
        lambda: scaler.set_growth_interval("2"),
        lambda: farandole.ZeroRedundancyOptimizer(net.parameters(), sgd, "world", lr=0.1),
        lambda: farandole.ZeroRedundancyOptimizer(net.parameters(), sgd, lr=0.1, rounding_seed="1"),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except farandole.InvalidArgument as error:
            check_text(error)
        else:
            pytest.fail(f"call {number} went well")


def test_wrong_types_for_classes_are_typed_errors_too() -> None:
    ranks.run(wrong_objects, 1)


def test_names_of_torch_need_a_group_too() -> None:
    for call in (farandole.get_rank, farandole.get_world_size, farandole.get_backend):
        with pytest.raises(farandole.InvalidArgument, match="no default group"):
            call()
    with pytest.raises(farandole.InvalidArgument, match="no default group"):
        farandole.all_gather_object([], 1)


def told(error: farandole.Error) -> tuple[str, int | None, tuple[int, ...], str | None]:
    assert isinstance(error.ranks, tuple)
    assert pickle.loads(pickle.dumps(error)).ranks == error.ranks
    return type(error).__name__, error.rank, error.ranks, error.collective


def late(rank: int, world_size: int) -> Any:
    dist.barrier()
    if rank == 1:
        time.sleep(3)
        return None
    with pytest.raises(farandole.CommError) as caught:
        farandole.all_gather(torch.empty(world_size), torch.ones(1))
    return told(caught.value)


def test_a_timeout_has_the_late_rank_and_the_collective_as_attributes() -> None:
    results = ranks.run(late, 2, setup=ranks.Setup(timeout_s=0.5))
    assert results[0] == ("TimeoutError", 1, (1,), "all_gather")


class Branch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.sometimes = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *, both: bool) -> torch.Tensor:
        return self.used(x) + self.sometimes(x) if both else self.used(x)


def attributes(rank: int, world_size: int) -> list[Any]:
    found = []
    call = farandole.broadcast if rank == 2 else farandole.all_reduce
    with pytest.raises(farandole.MismatchError) as mismatch:
        call(torch.ones(3))
    found.append(told(mismatch.value)[1:3])
    model = farandole.DistributedDataParallel(Branch())
    with pytest.raises(farandole.BackwardError) as backward:
        model(torch.ones(1, 2), both=rank != 1).sum().backward()
    found.append(told(backward.value))
    optimizer = farandole.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1 + 0.1 * (rank == 2)
    )
    model(torch.ones(1, 2), both=True).sum().backward()
    with pytest.raises(farandole.StepError) as step:
        optimizer.step()
    found.append(told(step.value))
    with pytest.raises(farandole.InvalidArgument) as misuse:
        farandole.all_reduce(torch.ones(3), op="mean")
    found.append(told(misuse.value))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(farandole.CommError) as death:
        dist.all_reduce(torch.ones(4))
    found.append(told(death.value))
    return found


def test_errors_have_the_ranks_and_the_collective_as_attributes() -> None:
    results = ranks.run(attributes, 3, may_die=[1])
    deaths = []
    for rank in (0, 2):
        mismatch, backward, step, misuse, death = results[rank]
        assert mismatch == (2, (2,))
        assert backward == ("BackwardError", 1, (1,), "backward")
        assert step == ("StepError", 2, (2,), "step")
        assert misuse == ("InvalidArgument", None, (), None)
        assert death[3] == "all_reduce"
        deaths.append(death)
    # Whoever sees the death first tells the other, which then knows who gave up.
    assert ("PeerFailure", 1, (1,), "all_reduce") in deaths


def absent(rank: int, world_size: int, store: str) -> Any:
    if rank == 1:
        return None
    with pytest.raises(farandole.TimeoutError) as caught:
        farandole.init_process_group(
            store=dist.FileStore(store, world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=1),
        )
    return told(caught.value)


def test_a_rank_that_does_not_come_is_an_attribute(tmp_path: Path) -> None:
    results = ranks.run(absent, 2, str(tmp_path / "s"), setup=ranks.Setup(backend=None))
    assert results[0] == ("TimeoutError", 1, (1,), None)


LOGS = """
import logging, sys, io
{before}
import farandole
{after}
farandole.init_process_group()
print("done")
"""


def run_program(before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    launchers = ("RANK", "WORLD_SIZE", "OMPI_", "PMI_", "SLURM_")
    return subprocess.run(
        [sys.executable, "-c", LOGS.format(before=before, after=after)],
        env={name: value for name, value in os.environ.items() if not name.startswith(launchers)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.system
def test_lines_of_cpp_reach_the_logger_farandole() -> None:
    done = run_program("logging.basicConfig(format='%(name)s|%(levelname)s|%(message)s')")
    assert "farandole|INFO|no launcher" in done.stderr
    assert "farandole INFO:" not in done.stderr
    done = run_program(after="logging.getLogger('farandole').setLevel(logging.WARNING)")
    assert done.stderr == ""
    done = run_program()
    assert done.stderr.startswith("farandole INFO: no launcher")


def test_import_leaves_the_root_logger_alone() -> None:
    assert not any(type(h).__module__.startswith("farandole") for h in logging.getLogger().handlers)


def refused_modules(rank: int, world_size: int) -> None:
    del rank
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    with pytest.raises(farandole.InvalidArgument, match="meta device: parameter 'weight'") as meta:
        farandole.DistributedDataParallel(torch.nn.Linear(2, 2, device="meta"))
    check_text(meta.value)
    net = torch.nn.Linear(2, 2)
    net.register_buffer("mask", torch.empty(1, device="meta"))
    with pytest.raises(farandole.InvalidArgument, match="meta device: buffer 'mask'"):
        farandole.DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (world_size,))
    net = torch.nn.Linear(2, 2)
    net.weight = torch.nn.Parameter(distribute_tensor(net.weight.data, mesh, [Shard(0)]))
    with pytest.raises(farandole.InvalidArgument, match="parameters that are DTensors") as tensors:
        farandole.DistributedDataParallel(net)
    check_text(tensors.value)
    with pytest.raises(farandole.InvalidArgument, match="parameters that are DTensors"):
        farandole.DistributedDataParallel(distribute_module(torch.nn.Linear(2, 2), mesh))


def test_meta_modules_and_dtensors_are_refused() -> None:
    ranks.run(refused_modules, 2)
