# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed over the backend, against expected values."""

from __future__ import annotations

from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks
from benchmarks.collectives import definition

WORLDS = [1, 2, 3, 4]
REDUCED = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
]
MOVED = [*REDUCED, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16]


def numbers(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers that differ by rank; exact in every dtype, also summed over 4 ranks."""
    return ((torch.arange(count) * 7 + 3 * rank) % 5 + 1).to(dtype)


def expected(name: str, rank: int, parts: list[Tensor], **options: Any) -> Tensor:
    """What `rank` must get of `parts`, one tensor of whole numbers for each rank."""
    arrays = [part.numpy() for part in parts]
    result = definition.result(name, arrays.__getitem__, rank, len(parts), **options)
    assert result is not None
    return torch.from_numpy(result)


def reductions(rank: int, world_size: int) -> None:
    for dtype in REDUCED:
        for count in (1, 3, 1000, 70_001):
            parts = torch.stack([numbers(r, count, torch.int64) for r in range(world_size)])
            expected = {
                dist.ReduceOp.SUM: parts.sum(0),
                dist.ReduceOp.MIN: parts.min(0).values,
                dist.ReduceOp.MAX: parts.max(0).values,
            }
            if count <= 1000 and world_size <= 3:
                expected[dist.ReduceOp.PRODUCT] = parts.prod(0)
            for op, values in expected.items():
                tensor = numbers(rank, count, dtype)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, values.to(dtype)), (dtype, count, op)
    average = torch.full((5,), float(rank))
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert torch.equal(average, torch.full((5,), (world_size - 1) / 2))


@pytest.mark.parametrize("world_size", WORLDS)
def test_all_reduce_is_exact_for_every_dtype_and_op(world_size: int) -> None:
    ranks.run(reductions, world_size)


def bools(rank: int, world_size: int) -> None:
    own = torch.tensor([True, False, rank == 0, rank == world_size - 1])
    either, both = own.clone(), own.clone()
    dist.all_reduce(either, dist.ReduceOp.SUM)
    dist.all_reduce(both, dist.ReduceOp.PRODUCT)
    assert either.tolist() == [True, False, True, True]
    assert both.tolist() == [True, False, world_size == 1, world_size == 1]


def test_sum_and_product_of_bools_are_or_and_and() -> None:
    ranks.run(bools, 2)


def bits(rank: int, world_size: int) -> None:
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        parts = [(torch.arange(1000) * (37 + r) % 127).to(dtype) for r in range(world_size)]
        band, bor, bxor = parts[0].clone(), parts[0].clone(), parts[0].clone()
        for part in parts[1:]:
            band, bor, bxor = band & part, bor | part, bxor ^ part
        expected = {dist.ReduceOp.BAND: band, dist.ReduceOp.BOR: bor, dist.ReduceOp.BXOR: bxor}
        for op, values in expected.items():
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, values), (dtype, op)
    truth = torch.tensor([True, False, rank == 0])
    farandole.all_reduce(truth, op="bxor")
    assert truth.tolist() == [world_size % 2 == 1, False, True]


@pytest.mark.parametrize("world_size", WORLDS)
def test_operations_on_bits(world_size: int) -> None:
    ranks.run(bits, world_size)


def complexes(rank: int, world_size: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        parts = [(torch.arange(7) * (1 + 2j) + r * 1j).to(dtype) for r in range(world_size)]
        total = torch.stack(parts).sum(0)
        tensor = parts[rank].clone()
        farandole.all_reduce(tensor)
        assert torch.equal(tensor, total)
        farandole.all_reduce(tensor, op="avg")
        assert torch.equal(tensor, total)
        with pytest.raises(farandole.InvalidArgument, match="conjugated"):
            farandole.all_reduce(parts[rank].conj())
        output = torch.empty(7, dtype=dtype)
        farandole.reduce_scatter(output, parts[rank].repeat(world_size))
        assert torch.equal(output, total)
        root = parts[rank].clone()
        farandole.reduce(root)
        assert rank != 0 or torch.equal(root, total)


def test_sums_of_complex_numbers() -> None:
    ranks.run(complexes, 2)


def premultiplied(rank: int, world_size: int) -> None:
    total = world_size * (world_size + 1) / 2
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for factor in (0.5, torch.tensor([0.5], dtype=dtype)):
            op = dist._make_nccl_premul_sum(factor)
            tensor = torch.full((4, 2), float(rank + 1), dtype=dtype).t()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, torch.full((2, 4), total / 2, dtype=dtype))
            output = torch.empty(3, dtype=dtype)
            source = torch.full((3 * world_size,), float(rank + 1), dtype=dtype)
            dist.reduce_scatter_tensor(output, source, op)
            assert torch.equal(output, torch.full((3,), total / 2, dtype=dtype))
            assert source[0].item() == rank + 1  # untouched
            root = source.clone()
            dist.reduce(root, 0, op)
            assert root[0].item() == (total / 2 if rank == 0 else rank + 1)


def test_premultiplied_sums() -> None:
    ranks.run(premultiplied, 3)


def sparse(rank: int, world_size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        parts = []
        for r in range(world_size):
            # Twice in one place, and as many elements as the rank says.
            places = torch.tensor([[0, r, r + 1, 0][: r + 2], [1, 2, 0, 1][: r + 2]])
            values = torch.arange(1, places.shape[1] * 3 + 1).view(-1, 3).to(dtype)
            parts.append(torch.sparse_coo_tensor(places, values, (8, 4, 3)))
        total = torch.stack([part.to_dense() for part in parts]).sum(0)
        tensor = parts[rank].clone()
        dist.all_reduce(tensor)
        assert tensor.is_sparse
        assert tensor.is_coalesced()
        assert torch.equal(tensor.to_dense(), total)
        average = parts[rank].clone()
        work = dist.all_reduce(average, dist.ReduceOp.AVG, async_op=True)
        work.wait()
        divided = total // world_size if dtype == torch.int64 else total.double() / world_size
        assert torch.equal(average.to_dense(), divided.to(dtype))
    nothing = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (5,))
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    one = torch.eye(3).to_sparse() if rank == 0 else torch.zeros(3, 3).to_sparse()
    dist.all_reduce(one)
    assert torch.equal(one.to_dense(), torch.eye(3))
    with pytest.raises(farandole.MismatchError, match=r"rank 0 has sizes \[2, 2\].*rank 1"):
        dist.all_reduce(torch.zeros(2, 2 + rank).to_sparse())
    dist.barrier()


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_reduce_of_sparse_tensors(world_size: int) -> None:
    ranks.run(sparse, world_size)


def embedding(rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(10, 4, sparse=True)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp(torch.tensor([rank, 5, 5])).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    expected = torch.zeros(10, 4)
    for r in range(world_size):
        expected[r] += 1 / world_size
        expected[5] += 2 / world_size
    assert torch.equal(gradient.to_dense(), expected)


def test_sparse_gradients_under_torchs_ddp() -> None:
    ranks.run(embedding, 2)


def other_reductions(rank: int, world_size: int) -> None:
    for dtype in REDUCED:
        parts = [numbers(r, 6 * world_size, torch.int64) for r in range(world_size)]
        own = expected("reduce_scatter", rank, parts).to(dtype)
        source = numbers(rank, 6 * world_size, dtype)

        output = torch.empty(6, dtype=dtype)
        dist.reduce_scatter_tensor(output, source)
        assert torch.equal(output, own)
        output = torch.empty(6, dtype=dtype)
        dist.reduce_scatter(output, list(source.view(world_size, 6)))
        assert torch.equal(output, own)
        output = torch.empty(6, dtype=dtype)
        dist.reduce_scatter(output, [part.clone() for part in source.view(world_size, 6)])
        assert torch.equal(output, own)

        in_place = source.clone()
        dist.reduce_scatter_tensor(in_place.view(world_size, 6)[rank], in_place)
        assert torch.equal(in_place.view(world_size, 6)[rank], own)

        for root in range(world_size):
            tensor = source.clone()
            dist.reduce(tensor, dst=root)
            is_root = rank == root
            wanted = expected("reduce", rank, parts, root=root).to(dtype) if is_root else source
            assert torch.equal(tensor, wanted)


@pytest.mark.parametrize("world_size", WORLDS)
def test_reduce_and_reduce_scatter(world_size: int) -> None:
    ranks.run(other_reductions, world_size)


def same(a: Tensor, b: Tensor) -> bool:
    """Equality of bytes, for dtypes that have no == of their own."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bytes_of(a), bytes_of(b))


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def moves(rank: int, world_size: int) -> None:
    for dtype in MOVED:
        parts = [numbers(r, 5, torch.int64) for r in range(world_size)]
        gathered = expected("all_gather", rank, parts).to(dtype)
        everyone = list(gathered.chunk(world_size))
        own = everyone[rank].clone()
        for root in range(world_size):
            tensor = own.clone()
            dist.broadcast(tensor, src=root)
            assert same(tensor, expected("broadcast", rank, parts, root=root).to(dtype)), dtype

            outputs = [torch.empty_like(own) for _ in range(world_size)] if rank == root else None
            dist.gather(own, outputs, dst=root)
            if outputs is not None:
                assert all(same(a, b) for a, b in zip(outputs, everyone, strict=True))

            output = torch.empty_like(own)
            dist.scatter(output, [t.clone() for t in everyone] if rank == root else None, src=root)
            assert same(output, own)

        outputs = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(outputs, own)
        assert all(same(a, b) for a, b in zip(outputs, everyone, strict=True))
        flat = torch.empty(5 * world_size, dtype=dtype)
        dist.all_gather_into_tensor(flat, own)
        assert same(flat, gathered)
        stacked = torch.empty(world_size, 5, dtype=dtype)
        stacked[rank] = own
        dist.all_gather_into_tensor(stacked, stacked[rank])  # in place
        assert same(stacked.view(-1), flat)


@pytest.mark.parametrize("world_size", WORLDS)
def test_moves_take_every_dtype(world_size: int) -> None:
    ranks.run(moves, world_size)


def all_to_alls(rank: int, world_size: int) -> None:
    parts = [torch.arange(world_size * 3) + 100 * r for r in range(world_size)]
    wanted = expected("all_to_all", rank, parts)
    source = parts[rank].clone()
    output = torch.empty_like(source)
    dist.all_to_all_single(output, source)
    assert torch.equal(output, wanted)
    dist.all_to_all_single(source, source, [3] * world_size, [3] * world_size)  # onto itself
    assert torch.equal(source, wanted)

    inputs = [torch.full((2, 2), 10 * rank + r) for r in range(world_size)]
    outputs = [torch.empty(2, 2, dtype=torch.int64) for _ in range(world_size)]
    dist.all_to_all(outputs, inputs)
    assert [int(t[0, 0]) for t in outputs] == [10 * r + rank for r in range(world_size)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_all_to_all_with_equal_splits(world_size: int) -> None:
    ranks.run(all_to_alls, world_size)


def uneven(rank: int, world_size: int) -> None:
    def size(source: int, destination: int) -> int:  # zero for some
        return (source * 3 + destination * 2) % 5 * (source != destination + 1)

    def block(source: int, destination: int) -> Tensor:
        numbers = torch.arange(size(source, destination) * 2).view(-1, 2)
        return numbers + 10 * source + destination

    everyone = range(world_size)
    splits = [[size(source, r) for r in everyone] for source in everyone]
    sends, receives = splits[rank], [sizes[rank] for sizes in splits]
    parts = [torch.cat([block(source, r) for r in everyone]) for source in everyone]
    for dtype in (torch.float32, torch.bool, torch.complex64):
        wanted = expected("all_to_all_v", rank, parts, splits=splits.__getitem__).to(dtype)
        source = parts[rank].to(dtype)
        output = torch.empty(sum(receives), 2, dtype=dtype)
        dist.all_to_all_single(output, source, receives, sends)
        assert torch.equal(output, wanted)
        strided = torch.empty(2, sum(receives), dtype=dtype).t()
        farandole.all_to_all(
            strided, source.t().contiguous().t(), output_splits=receives, input_splits=sends
        )
        assert torch.equal(strided, wanted)

        outputs = [torch.empty(n, 2, dtype=dtype) for n in receives]
        dist.all_to_all(outputs, list(source.split(sends)))
        assert all(torch.equal(a, b) for a, b in zip(outputs, wanted.split(receives), strict=True))
    nothing = [0] * world_size
    dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3), nothing, nothing)


@pytest.mark.parametrize("world_size", WORLDS)
def test_all_to_all_with_uneven_splits(world_size: int) -> None:
    ranks.run(uneven, world_size)


def wrong_splits(rank: int, world_size: int) -> None:
    del world_size
    ones = torch.ones(4)
    invalid = farandole.InvalidArgument
    for splits in ([1, 2], [4], [5, -1]):
        with pytest.raises(invalid, match=r"got input splits of .* for a tensor of 4 rows"):
            dist.all_to_all_single(torch.ones(4), ones, [2, 2], splits)
    with pytest.raises(invalid, match="got an output of type Int"):
        farandole.all_to_all(ones.int(), ones, output_splits=[2, 2], input_splits=[2, 2])
    with pytest.raises(invalid, match="as many tensors as the group has ranks"):
        dist.all_to_all([ones], [ones])
    with pytest.raises(farandole.MismatchError, match="split sizes of the two ranks"):
        dist.all_to_all_single(torch.ones(3), ones, [1, 2] if rank == 0 else [2, 1], [2, 2])
    dist.barrier()


def test_splits_that_do_not_fit() -> None:
    ranks.run(wrong_splits, 2)


def strided(rank: int, world_size: int) -> None:
    total = world_size * (world_size + 1) // 2
    base = torch.arange(24.0).view(2, 3, 4)
    shapes = {
        "transposed": (base.clone() * (rank + 1)).transpose(0, 2),
        "every second": (base.clone() * (rank + 1))[:, :, ::2],
        "channels last": (torch.arange(48.0).view(1, 3, 4, 4) * (rank + 1)).contiguous(
            memory_format=torch.channels_last
        ),
    }
    for name, tensor in shapes.items():
        expected = tensor / (rank + 1) * total
        strides = tensor.stride()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, expected), name
        assert tensor.stride() == strides

    # The ranks' strides differ: elements must meet by their place in the tensor.
    mixed = base.clone() if rank == 0 else base.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    dist.all_reduce(mixed)
    assert torch.equal(mixed, base * world_size)

    columns = torch.zeros(4, world_size)
    dist.all_gather(list(columns.unbind(1)), torch.full((4,), float(rank)))
    assert torch.equal(columns, torch.arange(float(world_size)).expand(4, -1))

    target = torch.zeros(4, 6)[:, ::2]
    dist.broadcast(target if rank else torch.ones(4, 6)[:, ::2], src=0)
    assert rank == 0 or torch.equal(target, torch.ones(4, 3))

    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    output = torch.empty(world_size, 2, dtype=torch.complex64)
    farandole.all_gather(output, conjugate)
    assert torch.equal(output[-1], torch.tensor([1 - 2j, 3 + 1j]))


def test_tensors_of_any_stride() -> None:
    ranks.run(strided, 2)


def empties(rank: int, world_size: int) -> None:
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, src=0)
    dist.all_gather([torch.empty(0) for _ in range(world_size)], empty)
    dist.all_gather_into_tensor(torch.empty(0), empty)
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), empty)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(world_size))


def test_tensors_without_elements_or_dimensions() -> None:
    ranks.run(empties, 2)


def coalesced(rank: int, world_size: int) -> None:
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 4, 0, 7)]
    group = dist.group.WORLD
    group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()
    for n, tensor in zip((1, 4, 0, 7), tensors, strict=True):
        assert torch.equal(tensor, torch.full((n,), float(sum(r + n for r in range(world_size)))))

    inputs = [torch.full((n,), float(rank)) for n in (2, 3)]
    outputs = [torch.empty(n * world_size) for n in (2, 3)]
    with dist._coalescing_manager(group=group):
        for output, source in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, source)
    assert all(
        torch.equal(output.view(world_size, -1)[r], torch.full((n,), float(r)))
        for n, output in zip((2, 3), outputs, strict=True)
        for r in range(world_size)
    )
    parts = [torch.empty(n) for n in (2, 3)]
    with dist._coalescing_manager(group=group):
        for part, source in zip(parts, outputs, strict=True):
            dist.reduce_scatter_tensor(part, source)
    assert all(torch.equal(part, torch.full_like(part, float(rank * world_size))) for part in parts)


def test_coalesced_forms() -> None:
    ranks.run(coalesced, 3)


def parameters(rank: int, world_size: int) -> None:
    weight = torch.nn.Parameter(torch.full((3, 2), float(rank)))
    dist.broadcast(weight, src=0)
    assert torch.equal(weight, torch.zeros(3, 2))
    view = torch.nn.Parameter(torch.ones(4, 4)).t()  # not row-major, needs a gradient
    dist.all_reduce(view)
    assert torch.equal(view, torch.full((4, 4), float(world_size)))


def test_tensors_that_require_gradients() -> None:
    ranks.run(parameters, 2)


def objects(rank: int, world_size: int) -> None:
    gathered: list[object] = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (rank * 100)})
    assert gathered == [{"rank": r, "text": "x" * (r * 100)} for r in range(world_size)]

    shared = ["one", 2, {"three": 3}] if rank == 1 else [None, None, None]
    dist.broadcast_object_list(shared, src=1)
    assert shared == ["one", 2, {"three": 3}]

    on_root: list[object] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(("from", rank), on_root, dst=0)
    assert rank != 0 or on_root == [("from", r) for r in range(world_size)]

    own: list[object] = [None]
    dist.scatter_object_list(own, [f"for {r}" for r in range(world_size)] if rank == 0 else None)
    assert own == [f"for {rank}"]
    dist.barrier()


@pytest.mark.parametrize("world_size", [2, 3])
def test_object_collectives(world_size: int) -> None:
    ranks.run(objects, world_size)
