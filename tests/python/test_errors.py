# SPDX-License-Identifier: Apache-2.0
"""Misuse and failures: typed, and told in three lines."""

from __future__ import annotations

import builtins
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

import ranks


def check_text(error: BaseException) -> None:
    lines = str(error).split("\n")
    assert any(line.startswith("why: ") for line in lines), str(error)
    assert any(line.startswith("fix: ") for line in lines), str(error)


def test_classes_fit_pythons_own() -> None:
    assert issubclass(farandole.Error, RuntimeError)
    assert issubclass(farandole.InvalidArgument, ValueError)
    assert issubclass(farandole.NotSupported, NotImplementedError)
    assert issubclass(farandole.TimeoutError, builtins.TimeoutError)
    for name in ("MismatchError", "PeerFailure", "TimeoutError", "AbortedError", "SystemError"):
        assert issubclass(getattr(farandole, name), farandole.CommError)
    assert farandole.PeerFailure.__module__ == "farandole"


def refused(kind: type[BaseException], match: str, call: object, *args: object) -> None:
    assert callable(call)
    with pytest.raises(kind, match=match) as caught:
        call(*args)
    check_text(caught.value)


def misuse(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    ones = torch.ones(4)
    wrong = farandole.InvalidArgument

    def flat_gather(output: Tensor, source: Tensor) -> None:
        dist.all_gather_into_tensor(output, source)

    refused(wrong, "single-element tensor list", group.allreduce, [ones, ones])
    refused(wrong, "elements overlap", dist.all_reduce, torch.ones(1).expand(4))
    refused(wrong, "world_size times input", flat_gather, torch.ones(7), ones)
    refused(wrong, "same type as input", flat_gather, torch.ones(4 * world_size).int(), ones)
    refused(wrong, "as many tensors as the group has ranks", dist.all_gather, [ones], ones)
    refused(wrong, "same dtype", dist.all_gather, [torch.ones(5)] * world_size, ones)
    refused(wrong, "invalid root rank: 9", group.broadcast, ones, 9)
    refused(wrong, "empty output on non-root", farandole_gather_everywhere, rank)
    refused(wrong, "AVG on a bool", dist.all_reduce, torch.ones(2).bool(), dist.ReduceOp.AVG)
    refused(wrong, "op is 'mean'", lambda: farandole.all_reduce(ones, op="mean"))
    refused(
        wrong, "divisible by the world size", farandole.all_to_all, torch.ones(3), torch.ones(3)
    )
    refused(
        wrong, "contiguous tensor of 2", lambda: farandole.gather(ones.int()[:3], ones, root=rank)
    )

    missing = farandole.NotSupported
    refused(missing, "Float8", dist.all_reduce, ones.to(torch.float8_e4m3fn))
    complex_max = lambda: farandole.all_reduce(ones * 1j, op="max")  # noqa: E731
    refused(missing, "complex numbers with MAX", complex_max)
    sparse = torch.eye(2).to_sparse()
    refused(missing, "sparse tensors with SUM", dist.all_reduce, sparse, dist.ReduceOp.MAX)
    in_rows = torch.eye(2).to_sparse_csr()
    refused(missing, "of layout SparseCsr", backend.broadcast, [in_rows], dist.BroadcastOptions())
    refused(wrong, "BAND on elements of type Float", dist.all_reduce, ones, dist.ReduceOp.BAND)
    premultiplied = dist._make_nccl_premul_sum(0.5)
    refused(wrong, "PREMUL_SUM on elements of", dist.all_reduce, ones.int(), premultiplied)
    misfit = dist._make_nccl_premul_sum(torch.ones(1).double())
    refused(wrong, "factor that does not fit", dist.all_reduce, ones, misfit)

    assert torch.equal(ones, torch.ones(4))  # nothing was touched, and nothing was sent:
    dist.all_reduce(ones)
    assert torch.equal(ones, torch.full((4,), float(world_size)))


def farandole_gather_everywhere(rank: int) -> None:
    outputs = [[torch.empty(1), torch.empty(1)]]
    options = dist.GatherOptions()
    options.rootRank = 1 - rank
    dist.group.WORLD.gather(outputs, [torch.ones(1)], options)


def test_misuse_is_told_before_anything_is_sent() -> None:
    ranks.run(misuse, 2)


def mismatch(rank: int, world_size: int) -> None:
    del world_size
    call = dist.all_reduce if rank == 0 else dist.broadcast
    both = r"all_reduce.*broadcast|broadcast.*all_reduce"
    refused(farandole.MismatchError, both, call, torch.ones(3), *([] if rank == 0 else [0]))
    dist.barrier()  # the group stays usable


def test_a_mismatch_names_both_sides_and_leaves_the_group_usable() -> None:
    ranks.run(mismatch, 2)


def killed(rank: int, world_size: int, how: str) -> tuple[str, int | None, str, float]:
    del world_size
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))  # imports what it needs
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        Path(os.environ["DEATH"]).write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    ways = {
        "sync": lambda: dist.all_reduce(torch.ones(1000)),
        "async": lambda: dist.all_reduce(torch.ones(1000), async_op=True).wait(),
        "ddp": lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)),
    }
    with pytest.raises(farandole.CommError) as caught:
        ways[how]()
    told = time.time()
    check_text(caught.value)
    return type(caught.value).__name__, caught.value.rank, str(caught.value), told


def _new_optimizer() -> None:
    farandole.ZeroRedundancyOptimizer(torch.nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)


CALLS: dict[str, Callable[[], object]] = {
    "all_reduce()": lambda: farandole.all_reduce(torch.ones(4)),
    "barrier()": farandole.barrier,
    "all_gather_object()": lambda: farandole.all_gather_object([None, None], {"step": 1}),
    "new_group()": farandole.new_group,
    "save_checkpoint()": lambda: farandole.save_checkpoint(tempfile.mkdtemp()),
    "resume_or_start()": lambda: farandole.resume_or_start(tempfile.mkdtemp()),
    "DistributedDataParallel()": lambda: farandole.DistributedDataParallel(torch.nn.Linear(2, 2)),
    "ZeroRedundancyOptimizer()": _new_optimizer,
}


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_ends_without_a_call_of_the_others_is_told_of(call: str, backend: str) -> None:
    ranks.run(_calls_alone, 2, call, setup=ranks.Setup(backend=backend), may_die=[1])


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
def test_a_rank_that_has_left_and_runs_on_is_told_of(backend: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    ranks.run(_calls_alone, 2, "new_group()", str(done), setup=ranks.Setup(backend=backend))


def _calls_alone(rank: int, size: int, call: str, runs_until: str = "") -> None:
    if rank == 1:
        farandole.destroy()
        while runs_until and not Path(runs_until).exists():
            time.sleep(0.05)
        if not runs_until:
            os._exit(0)
        return
    with pytest.raises(farandole.PeerFailure) as caught:
        CALLS[call]()
    if runs_until:
        Path(runs_until).touch()
    ways = [f"rank 1 {how} without calling {call}" for how in ("ended", "left the group")]
    assert any(way in str(caught.value) for way in ways), caught.value
    assert f"fix: call {call} on every rank" in str(caught.value)


@pytest.mark.parametrize("how", ["sync", "async", "ddp"])
def test_a_killed_rank_is_named_on_every_survivor_within_a_second(how: str, tmp_path: Path) -> None:
    death = tmp_path / "death"
    results = ranks.run(killed, 3, how, setup=ranks.Setup(env={"DEATH": str(death)}), may_die=[1])
    survivors = [results[0], results[2]]
    # Whoever sees the death first says so to the group; the others may hear it from there.
    for kind, rank, text, told in survivors:
        assert (kind, rank) == ("PeerFailure", 1)
        assert "rank 1 (pid" in text
        assert told - float(death.read_text()) < 1.0


def train_until_killed(rank: int) -> None:
    loader = DataLoader(range(10_000), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for step, batch in enumerate(loader):
        if rank == 1 and step == 20:
            Path(os.environ["DEATH"]).write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(batch)


def killed_beside_workers(rank: int, world_size: int) -> tuple[str, float]:
    del world_size
    with pytest.raises(farandole.CommError) as caught:
        train_until_killed(rank)
    return str(caught.value), time.time()


def test_a_rank_killed_beside_its_data_loader_is_named_within_a_second(tmp_path: Path) -> None:
    death = tmp_path / "death"
    setup = ranks.Setup(env={"DEATH": str(death)})
    results = ranks.run(killed_beside_workers, 3, setup=setup, may_die=[1])
    for text, told in (results[0], results[2]):
        assert "rank 1 (pid" in text
        assert told - float(death.read_text()) < 1.0


def killed_in_backward(rank: int, world_size: int) -> str:
    del world_size
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(2):  # the second forward exchanges the buckets' order
        model(torch.ones(1, 4)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    loss = model(torch.ones(1, 4)).sum()  # sends nothing: there are no buffers
    with pytest.raises(farandole.PeerFailure) as caught:
        loss.backward()
    assert time.monotonic() - begin < 5 * ranks.load()
    return str(caught.value)


def test_the_error_keeps_its_type_through_autograd() -> None:
    text, _ = ranks.run(killed_in_backward, 2, may_die=[1])
    assert "rank 1" in text


def late(rank: int, world_size: int) -> None:
    del world_size
    dist.barrier()
    if rank == 1:
        time.sleep(4)
        return
    begin = time.monotonic()
    with pytest.raises(farandole.TimeoutError, match="rank 1") as caught:
        dist.all_reduce(torch.ones(1))
    assert 0.9 < time.monotonic() - begin < 3.5 * ranks.load()
    check_text(caught.value)


def test_a_late_rank_is_named_at_the_timeout() -> None:
    ranks.run(late, 2, setup=ranks.Setup(timeout_s=1.0))


def never(rank: int, world_size: int, store: str) -> None:
    from datetime import timedelta

    if rank == 1:
        return
    with pytest.raises(farandole.TimeoutError, match="rank 1") as caught:
        dist.init_process_group(
            "farandole",
            store=dist.FileStore(store, world_size) if store else dist.HashStore(),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=1),
        )
    check_text(caught.value)


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_rank_that_does_not_come_is_named_at_init(in_a_file: bool, tmp_path: Path) -> None:
    store = str(tmp_path / "store") if in_a_file else ""
    ranks.run(never, 2, store, setup=ranks.Setup(backend=None))


def aborted(rank: int, world_size: int) -> None:
    del world_size
    dist.barrier()
    if rank == 0:
        time.sleep(0.5)
        farandole.abort()
        return
    begin = time.monotonic()
    with pytest.raises(farandole.AbortedError):
        dist.all_reduce(torch.ones(1))
    assert time.monotonic() - begin < 3 * ranks.load()
    with pytest.raises(farandole.AbortedError):
        dist.barrier()


def test_abort_wakes_the_peers() -> None:
    ranks.run(aborted, 3)


def forked(rank: int, world_size: int) -> None:
    del rank
    dist.all_reduce(torch.ones(1), async_op=True).wait()  # the executor exists
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for asynchronous in (False, True):
                with pytest.raises(farandole.CommError, match="forked"):
                    dist.all_reduce(torch.ones(1), async_op=asynchronous)
            dist.destroy_process_group()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    after = torch.ones(1)
    dist.all_reduce(after)
    assert after.item() == world_size


def test_a_collective_in_a_forked_child_is_an_error_there() -> None:
    ranks.run(forked, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_refused_until_there_is_nccl() -> None:
    ranks.run(on_cuda, 1)


def on_cuda(rank: int, world_size: int) -> None:
    del rank, world_size
    with pytest.raises(farandole.NotSupported, match="NCCL"):
        dist.all_reduce(torch.ones(1, device="cuda"))
