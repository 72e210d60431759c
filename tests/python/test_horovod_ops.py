# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations against what one process computes."""

from __future__ import annotations

import time
from typing import Any

import farandole
import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

import ranks
import sim
from horovod_session import horovod

WORLDS = [2, 3]
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
]


def numbers(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + 3 * rank) % 5 + 1).to(dtype).reshape(shape)


def reductions(rank: int, world_size: int) -> None:
    with horovod():
        for dtype in DTYPES:
            parts = torch.stack([numbers(r, 3, 5, dtype=torch.int64) for r in range(world_size)])
            average = parts.sum(0) / world_size
            expected = {
                hvd.Sum: parts.sum(0),
                hvd.Min: parts.amin(0),
                hvd.Max: parts.amax(0),
                hvd.Product: parts.prod(0),
                hvd.Average: average if dtype.is_floating_point else average.trunc(),
            }
            for op, values in expected.items():
                check_reduction(op, numbers(rank, 3, 5, dtype=dtype), values.to(dtype))


def check_reduction(op: int, own: Tensor, values: Tensor) -> None:
    given = own.clone()
    results = [hvd.allreduce(own, op=op), hvd.synchronize(hvd.allreduce_async(own, op=op))]
    results += hvd.grouped_allreduce([own, own], op=op)
    assert torch.equal(own, given)
    results += hvd.grouped_allreduce_([own.clone(), own.clone()], op=op)
    replaced = own.clone()
    assert hvd.allreduce_(replaced, op=op) is replaced
    handle = hvd.allreduce_async_(own, op=op, name="named")
    assert hvd.synchronize(handle) is own
    assert hvd.poll(handle)
    assert hvd.synchronize(handle) is None
    for result in [*results, replaced, own]:
        assert result.dtype == values.dtype
        torch.testing.assert_close(result, values)


@pytest.mark.parametrize("world_size", WORLDS)
def test_reductions(world_size: int) -> None:
    ranks.run(reductions, world_size)


def scaled(rank: int, world_size: int) -> None:
    with horovod():
        own = torch.tensor([1.0, -2.0]) * (rank + 1)
        total = torch.tensor([1.0, -2.0]) * sum(range(1, world_size + 1))
        result = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert torch.equal(result, 2 * total)
        result = hvd.allreduce(own, prescale_factor=0.5, postscale_factor=4.0)
        torch.testing.assert_close(result, 2 * total / world_size)
        whole = torch.tensor([3, -3])
        result = hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5)
        assert result.tolist() == [world_size, -world_size]
        for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
            result = hvd.allreduce(own, op=hvd.Sum, compression=compression)
            assert torch.equal(result, total)
        with pytest.warns(DeprecationWarning, match="op=hvd"):
            assert torch.equal(hvd.allreduce(own, average=False), total)
        with pytest.raises(ValueError, match="both op and average"):
            hvd.allreduce(own, average=False, op=hvd.Sum)
        assert hvd.allreduce(torch.empty(0)).shape == (0,)


@pytest.mark.parametrize("world_size", WORLDS)
def test_scales_and_compression(world_size: int) -> None:
    ranks.run(scaled, world_size)


def moves(rank: int, world_size: int) -> None:
    with horovod():
        for dtype in [*DTYPES, torch.bool]:
            rows = [numbers(r, r + 1, 2).to(dtype) for r in range(world_size)]
            assert torch.equal(hvd.allgather(rows[rank]), torch.cat(rows))
            even = hvd.grouped_allgather([rows[0], rows[rank]])
            assert torch.equal(even[0], torch.cat([rows[0]] * world_size))
            assert torch.equal(even[1], torch.cat(rows))
            own = rows[0] if rank == world_size - 1 else torch.zeros_like(rows[0])
            assert torch.equal(hvd.broadcast(own, world_size - 1), rows[0])
            hvd.broadcast_(own, world_size - 1, name="in place")
            assert torch.equal(own, rows[0])
        assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
        none_here = torch.ones(2 if rank == 0 else 0, 3)
        assert torch.equal(hvd.allgather(none_here), torch.ones(2, 3))
        # rank r sends r + p + 1 rows to rank p
        counts = [rank + p + 1 for p in range(world_size)]
        own = torch.full((sum(counts), 2), rank)
        result, received = hvd.alltoall(own, torch.tensor(counts))
        assert received.tolist() == counts
        assert result[:, 0].tolist() == [r for r in range(world_size) for _ in range(counts[r])]
        result = hvd.alltoall(torch.arange(2 * world_size))
        assert result.tolist() == [2 * rank, 2 * rank + 1] * world_size
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(torch.zeros(world_size + 1))
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(torch.zeros(4), splits=[1] * (world_size + 2))
        with pytest.raises(ValueError, match="root_rank"):
            hvd.broadcast(own, world_size)


@pytest.mark.parametrize("world_size", WORLDS)
def test_moves(world_size: int) -> None:
    ranks.run(moves, world_size)


def scattered(rank: int, world_size: int) -> None:
    with horovod():
        for rows in (1, world_size, 2 * world_size + 1):
            parts = [numbers(r, rows, 3) for r in range(world_size)]
            total = torch.stack(parts).sum(0)
            expected = torch.tensor_split(total, world_size)[rank]
            assert torch.equal(hvd.reducescatter(parts[rank], op=hvd.Sum), expected)
            torch.testing.assert_close(hvd.reducescatter(parts[rank]), expected / world_size)
            result = hvd.grouped_reducescatter(
                [parts[rank]] * 2, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0
            )
            assert torch.equal(result[1], 2 * expected)
        with pytest.raises(HorovodInternalError, match="first dimension"):
            hvd.reducescatter(torch.tensor(1.0))
        with pytest.raises(NotImplementedError, match="adds and averages alone"):
            hvd.reducescatter(torch.ones(4), op=hvd.Max)


@pytest.mark.parametrize("world_size", WORLDS)
def test_reducescatter_gives_the_first_ranks_more_rows(world_size: int) -> None:
    ranks.run(scattered, world_size)


def with_gradients(rank: int, world_size: int) -> None:
    def leaf(*shape: int) -> Tensor:
        return torch.ones(shape, requires_grad=True)

    def gradient(own: Tensor, result: Tensor, factor: float) -> Tensor:
        result.backward(torch.full_like(result, factor))
        assert own.grad is not None
        return own.grad

    total = sum(range(1, world_size + 1))
    with horovod():
        own = leaf(3)
        result = hvd.allreduce(own, op=hvd.Sum, postscale_factor=2.0)
        assert gradient(own, result, rank + 1.0).tolist() == [2.0 * total] * 3
        own = leaf(3)
        torch.testing.assert_close(
            gradient(own, hvd.allreduce(own), rank + 1.0), torch.full((3,), total / world_size)
        )
        own = leaf(rank + 1)
        weights = torch.arange(1.0, total + 1)
        hvd.allgather(own).backward(weights)
        assert own.grad is not None
        torch.testing.assert_close(
            own.grad, torch.split(weights, list(range(1, world_size + 1)))[rank]
        )
        own = leaf(3)
        expected = total / world_size if rank == 1 else 0.0
        torch.testing.assert_close(
            gradient(own, hvd.broadcast(own, 1), rank + 1.0), torch.full((3,), expected)
        )
        own = leaf(world_size)
        result = hvd.alltoall(own)
        assert gradient(own, result, rank + 1.0).tolist() == [r + 1 for r in range(world_size)]
        own = leaf(world_size)
        result = hvd.reducescatter(own, op=hvd.Sum)
        expected_sum = [world_size * (r + 1.0) for r in range(world_size)]
        assert gradient(own, result, rank + 1.0).tolist() == expected_sum
        first, second = leaf(2), leaf(3)
        results = hvd.grouped_allreduce([first, second], op=hvd.Sum)
        (results[0].sum() + 2 * results[1].sum()).backward()
        assert first.grad is not None
        assert second.grad is not None
        assert (first.grad[0], second.grad[0]) == (world_size, 2 * world_size)


@pytest.mark.parametrize("world_size", WORLDS)
def test_gradients(world_size: int) -> None:
    ranks.run(with_gradients, world_size)


def errors(rank: int, world_size: int) -> None:
    with horovod():
        with pytest.raises(HorovodInternalError, match="shapes") as caught:
            hvd.allreduce(torch.ones(3 + rank), name="shape")
        assert isinstance(caught.value, RuntimeError)
        dtypes = [torch.float32, torch.int32, torch.float64]
        for call in (
            lambda: hvd.allreduce(torch.ones(3, dtype=dtypes[rank])),
            lambda: hvd.allgather(torch.ones(3, dtype=dtypes[rank])),
            lambda: hvd.allgather(torch.ones(3, 2 + rank)),
            lambda: hvd.broadcast(torch.ones(3), rank),
            lambda: hvd.allreduce(torch.ones(3), op=[hvd.Sum, hvd.Min, hvd.Max][rank]),
            lambda: hvd.allreduce(torch.ones(3), prescale_factor=1.0 + rank),
        ):
            with pytest.raises(HorovodInternalError):
                call()
        if rank == 0:
            handle = hvd.allreduce_async(torch.ones(3), name="twice")
            with pytest.raises(ValueError, match="in progress"):
                hvd.allreduce_async(torch.ones(3), name="twice")
            gathered = hvd.allgather_async(torch.ones(3), name="twice")
            hvd.barrier()
        else:
            hvd.barrier()
            handle = hvd.allreduce_async(torch.ones(3), name="twice")
            gathered = hvd.allgather_async(torch.ones(3), name="twice")
        assert hvd.synchronize(handle).tolist() == [1.0] * 3
        assert len(hvd.synchronize(gathered)) == 3 * world_size
        half = torch.ones(3, dtype=torch.float8_e4m3fn)
        with pytest.raises((ValueError, NotImplementedError)):
            hvd.allreduce(half, op=hvd.Sum)
        first = hvd.allreduce_async(half, op=hvd.Sum, name="cannot")
        second = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="can")
        with pytest.raises((ValueError, NotImplementedError)):
            hvd.synchronize(first)
        assert hvd.synchronize(second)[0] == world_size
        with pytest.raises(ValueError, match="op=9"):
            hvd.allreduce(torch.ones(3), op=9)


@pytest.mark.parametrize("world_size", WORLDS)
def test_errors_are_those_of_horovod_on_all_ranks(world_size: int) -> None:
    ranks.run(errors, world_size)


def lost(rank: int, world_size: int) -> None:
    hvd.init()
    hvd.barrier()
    if rank == 1:
        time.sleep(0.1)
        hvd.shutdown()
        return
    with pytest.raises(HorovodInternalError):
        hvd.allreduce(torch.ones(3))
    hvd.shutdown()


def refused(rank: int, world_size: int) -> None:
    ones: Any = torch.ones(2)
    with horovod():
        for refuse in (
            lambda: hvd.allreduce(torch.tensor([True])),
            lambda: hvd.allreduce(ones.to_sparse(), op=hvd.Sum),
            lambda: hvd.allgather(ones.to_sparse()),
            lambda: hvd.broadcast_(ones.to("meta"), 0),
        ):
            with pytest.raises(farandole.NotSupported, match="named-tensor"):
                refuse()
        for wrong in (3.0, [1.0], None):
            for operation in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
                with pytest.raises(farandole.InvalidArgument, match=r"a torch\.Tensor"):
                    operation(wrong)  # type: ignore[arg-type,operator]
        number: Any = 5
        for misuse in (
            lambda: hvd.allreduce(ones, process_set=number),
            lambda: hvd.synchronize(number),
            lambda: hvd.poll(number),
            lambda: hvd.broadcast_optimizer_state(number, 0),
            lambda: hvd.sparse_allreduce_async(ones, "a", hvd.Sum),
            lambda: hvd.sparse_allreduce_async(ones.to_sparse(), "b", hvd.Max),
        ):
            with pytest.raises(farandole.InvalidArgument, match="argument-type"):
                misuse()
        assert hvd.allreduce(torch.tensor([rank == 0, False]), op=hvd.Max).tolist() == [True, False]
        assert hvd.allreduce(ones, op=hvd.Sum).tolist() == [world_size] * 2


def test_what_no_rank_can_run_is_refused_before_anything_is_sent() -> None:
    ranks.run(refused, 2)


def with_settings_that_differ(rank: int, world_size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY"):
            patch.setenv(variable, str(1000 + rank))
            with pytest.raises(
                HorovodInternalError, match=rf"(?s){variable} to differ.*1000, 1001"
            ):
                hvd.init()
            patch.delenv(variable)
        for text in ("inf", "nan", "-1", "many"):
            patch.setenv("HOROVOD_CYCLE_TIME", text)
            with pytest.raises(farandole.InvalidArgument, match="HOROVOD_CYCLE_TIME"):
                hvd.init()
    with horovod():
        assert hvd.size() == world_size


def test_variables_that_are_wrong_or_differ_between_ranks() -> None:
    ranks.run(with_settings_that_differ, 2)


def test_a_rank_that_leaves_is_an_error_for_the_others() -> None:
    ranks.run(lost, 2)


def sets(rank: int, world_size: int) -> None:
    static = hvd.ProcessSet([0, 2])
    assert static.size() is None
    with horovod([static]):
        assert (static.size(), static.included()) == (2, rank != 1)
        assert static.rank() == {0: 0, 1: -1, 2: 1}[rank]
        if static.included():
            assert hvd.allreduce(torch.tensor(1.0 + rank), process_set=static) == 2.0
            assert hvd.broadcast(torch.tensor(rank), 2, process_set=static) == 2
            gathered = hvd.allgather_object(rank, process_set=static)
            assert gathered == [0, 2]
            with pytest.raises(ValueError, match="root_rank"):
                hvd.broadcast(torch.tensor(rank), 1, process_set=static)
        else:
            with pytest.raises(ValueError, match="not in the group"):
                hvd.allreduce(torch.tensor(1.0), process_set=static)
        dynamic = hvd.add_process_set([1, 2])
        if dynamic.included():
            assert hvd.allreduce(torch.tensor(1.0 * rank), op=hvd.Sum, process_set=dynamic) == 3.0
            hvd.barrier(process_set=dynamic)
        with pytest.raises(ValueError, match="no process set yet"):
            hvd.add_process_set([2, 1])
        with pytest.raises(ValueError, match=r"\[0, 3\] of 3"):
            hvd.add_process_set([0, 3])
        assert hvd.remove_process_set(dynamic)
        assert not hvd.remove_process_set(dynamic)
        assert not hvd.remove_process_set(hvd.global_process_set)
        assert dynamic.size() is None
        with pytest.raises(ValueError, match="was removed"):
            hvd.allreduce(torch.tensor(1.0), process_set=dynamic)
        assert hvd.global_process_set.ranks == [0, 1, 2]
    assert static.process_set_id is None


def test_process_sets() -> None:
    ranks.run(sets, 3)


def joins(rank: int, world_size: int) -> None:
    with horovod():
        for _ in range(2):
            for _ in range(2 + rank):
                hvd.allreduce(torch.ones(3), name="step", op=hvd.Sum)
            assert hvd.join() == world_size - 1
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum)[0] == world_size  # without a name
        if rank == 0:
            hvd.join()
        else:
            with pytest.raises(HorovodInternalError, match="have joined"):
                hvd.allgather(torch.ones(3), name="gathered")
            half = hvd.allreduce(torch.ones(3), name="average")
            torch.testing.assert_close(half, torch.full((3,), (world_size - 1) / world_size))
            hvd.join()


@pytest.mark.parametrize("world_size", WORLDS)
def test_join(world_size: int) -> None:
    ranks.run(joins, world_size)


def adasum_of(a: Tensor, b: Tensor) -> Tensor:
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def adasums(rank: int, world_size: int) -> None:
    with horovod():
        if world_size == 3:
            with pytest.raises(NotImplementedError, match="adasum of 3 ranks"):
                hvd.allreduce(torch.ones(3), op=hvd.Adasum)
            return
        parts = [torch.randn(50, generator=torch.Generator().manual_seed(r)) for r in range(4)]
        result = hvd.allreduce(parts[rank], op=hvd.Adasum)
        expected = adasum_of(parts[0], parts[1])
        if world_size == 4:
            expected = adasum_of(expected, adasum_of(parts[2], parts[3]))
        torch.testing.assert_close(result, expected)
        same = hvd.allgather(result.unsqueeze(0))
        assert torch.equal(same, result.expand_as(same))
        assert torch.equal(hvd.allreduce(torch.ones(4), op=hvd.Adasum), torch.ones(4))
        assert torch.equal(hvd.allreduce(torch.zeros(4), op=hvd.Adasum), torch.zeros(4))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_adasum(world_size: int) -> None:
    ranks.run(adasums, world_size)


def objects(rank: int, world_size: int) -> None:
    with horovod():
        value: Any = {"rank": rank, "list": list(range(1000 * rank))}
        assert hvd.broadcast_object(value, root_rank=1)["rank"] == 1
        assert hvd.broadcast_object(value if rank == 0 else None)["rank"] == 0
        assert [each["rank"] for each in hvd.allgather_object(value)] == list(range(world_size))
        sparse = torch.sparse_coo_tensor([[rank, 4]], [1.0, 2.0], (5,))
        result = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Average)()
        dense = [1 / world_size if index < world_size else 0.0 for index in range(4)]
        torch.testing.assert_close(result.to_dense(), torch.tensor([*dense, 2.0]))


@pytest.mark.parametrize("world_size", WORLDS)
def test_objects_and_sparse_tensors(world_size: int) -> None:
    ranks.run(objects, world_size)


def on_hosts(rank: int, world_size: int) -> None:
    with horovod():
        assert hvd.size() == 4
        assert (hvd.local_size(), hvd.local_rank(), hvd.is_homogeneous()) == (2, rank // 2, True)
        assert (hvd.cross_size(), hvd.cross_rank()) == (2, rank % 2)
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [4.0] * 3


def test_ranks_of_two_hosts() -> None:
    ranks.run(on_hosts, 4, setup=ranks.Setup(backend="hosts"))


def with_a_group_of_the_program(rank: int, world_size: int) -> None:
    with horovod():
        order = ["a", "b"] if rank else ["b", "a"]
        handles = [hvd.allreduce_async(torch.ones(3), name=name) for name in order]
        farandole.barrier() if torch.distributed.get_backend() == "farandole" else None
        for handle in handles:
            assert hvd.synchronize(handle).tolist() == [1.0] * 3
    assert torch.distributed.is_initialized()


@pytest.mark.parametrize("backend", ["farandole", "gloo"])
def test_the_programs_own_group_stays(backend: str) -> None:
    ranks.run(with_a_group_of_the_program, 2, setup=ranks.Setup(backend=backend))


def on_devices(rank: int, world_size: int) -> None:
    with horovod():
        own = torch.full((5,), rank + 1.0)
        assert own.device.type == "sim"
        total = sum(range(1, world_size + 1))
        handles = [hvd.allreduce_async(own, name=name, op=hvd.Sum) for name in "ab"]
        for handle in handles:
            result = hvd.synchronize(handle)
            assert result.device == own.device
            assert result.tolist() == [total] * 5
        assert hvd.allgather(own[: rank + 1]).numel() == total
        assert hvd.broadcast(own, 1).tolist() == [2.0] * 5
        assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
        if rank == 0:
            assert hvd.allreduce(own, name="alone", op=hvd.Sum).tolist() == [1.0] * 5
        hvd.join()
        with pytest.raises(HorovodInternalError, match="device"):
            hvd.allreduce(own.cpu() if rank == 0 else own)


@pytest.mark.parametrize("lane", [pytest.param("nccl", marks=sim.NEEDS_NCCL), "staged"])
def test_tensors_of_accelerators(lane: str) -> None:
    setup = ranks.Setup(backend="sim-lazy", env={"FARANDOLE_DEVICE_BACKEND": lane})
    ranks.run(on_devices, 2, setup=setup)
