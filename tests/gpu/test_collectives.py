# SPDX-License-Identifier: Apache-2.0
"""Every collective of every dtype gives on the device what it gives on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rank_set import LeftOut, RankSet, World
from sharing import sum_of_ranks

FLOATING = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]
NOT_IN_NCCL = [torch.int16]  # can be moved, not reduced
MOVED = [*FLOATING, *INTEGERS, *NOT_IN_NCCL, torch.bool, torch.complex64, torch.float8_e4m3fn]
COUNTS = [1, 1003, 300_001]

Make = Callable[[int], Tensor]
"""The numbers of this rank, so many of them."""
Outputs = Callable[[int, int, int, Make], list[Tensor]]
"""Of a rank of so many, for a count and its numbers."""


def all_reduce(op: dist.ReduceOp) -> Outputs:
    def outputs(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
        tensor = make(count)
        dist.all_reduce(tensor, op)
        return [tensor]

    return outputs


def reduce(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    tensor = make(count)
    dist.reduce(tensor, size - 1)
    return [tensor] if rank == size - 1 else []


def reduce_scatter_tensor(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    output = make(count)
    dist.reduce_scatter_tensor(output, make(count * size))
    return [output]


def reduce_scatter(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    output = make(count)
    dist.reduce_scatter(output, [make(count) for _ in range(size)])
    return [output]


def broadcast(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    tensor = make(count)
    dist.broadcast(tensor, size - 1)
    return [tensor]


def all_gather_into_tensor(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    output = make(count * size)
    dist.all_gather_into_tensor(output, make(count))
    return [output]


def all_gather(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    outputs = [make(count) for _ in range(size)]
    dist.all_gather(outputs, make(count))
    return outputs


def gather(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    outputs = [make(count) for _ in range(size)] if rank == 0 else None
    dist.gather(make(count), outputs)
    return outputs or []


def scatter(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    output = make(count)
    dist.scatter(output, [make(count) for _ in range(size)] if rank == 0 else None)
    return [output]


def all_to_all_single(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    output = make(count * size)
    dist.all_to_all_single(output, make(count * size))
    return [output]


def all_to_all_uneven(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    """Rank r sends (r + 1) * count to each."""
    output = make(count * size * (size + 1) // 2)
    sent = [(rank + 1) * count] * size
    received = [(other + 1) * count for other in range(size)]
    dist.all_to_all_single(output, make(sum(sent)), received, sent)
    return [output]


def all_to_all(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    outputs = [make(count) for _ in range(size)]
    dist.all_to_all(outputs, [make(count) for _ in range(size)])
    return outputs


def send_and_recv(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    """In pairs; the last of an odd number has none."""
    tensor = make(count)
    other = rank ^ 1
    if other < size:
        if rank % 2 == 0:
            dist.send(tensor, other)
        else:
            dist.recv(tensor, other)
    return [tensor]


def batch_isend_irecv(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    """Round the ring."""
    output = make(count)
    transfers = [
        dist.P2POp(dist.isend, make(count), (rank + 1) % size),
        dist.P2POp(dist.irecv, output, (rank - 1) % size),
    ]
    if size > 1:
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
    return [output]


def strided(rank: int, size: int, count: int, make: Make) -> list[Tensor]:
    """Every second element of a matrix's transpose."""
    tensor = make(6 * count).view(count, 6).t()[::2]
    dist.all_reduce(tensor)
    return [tensor]


SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
REDUCED = [*FLOATING, *INTEGERS]
COLLECTIVES: dict[str, tuple[Outputs, list[torch.dtype]]] = {
    "all_reduce SUM": (all_reduce(SUM), [*REDUCED, torch.bool, torch.complex64]),
    "all_reduce AVG": (all_reduce(AVG), [*REDUCED, torch.complex64]),
    "all_reduce MIN": (all_reduce(dist.ReduceOp.MIN), [*REDUCED, torch.bool]),
    "all_reduce MAX": (all_reduce(dist.ReduceOp.MAX), [*REDUCED, torch.bool]),
    "all_reduce PRODUCT": (all_reduce(dist.ReduceOp.PRODUCT), [*REDUCED, torch.bool]),
    "all_reduce PREMUL_SUM": (all_reduce(dist._make_nccl_premul_sum(0.5)), FLOATING),
    "all_reduce strided": (strided, REDUCED),
    "reduce": (reduce, REDUCED),
    "reduce_scatter_tensor": (reduce_scatter_tensor, REDUCED),
    "reduce_scatter": (reduce_scatter, REDUCED),
    "broadcast": (broadcast, MOVED),
    "all_gather_into_tensor": (all_gather_into_tensor, MOVED),
    "all_gather": (all_gather, MOVED),
    "gather": (gather, MOVED),
    "scatter": (scatter, MOVED),
    "all_to_all_single": (all_to_all_single, MOVED),
    "all_to_all_single uneven": (all_to_all_uneven, MOVED),
    "all_to_all": (all_to_all, MOVED),
    "send and recv": (send_and_recv, MOVED),
    "batch_isend_irecv": (batch_isend_irecv, MOVED),
}


def outputs_on(
    device: str, rank: int, world: World, name: str, count: int, dtype: torch.dtype
) -> list[Tensor]:
    """With numbers that are exact in every dtype, as are their sums, means and products."""

    def make(wanted: int) -> Tensor:
        numbers = (torch.arange(wanted) + rank) % 2 + 1
        if name.endswith("AVG"):
            numbers *= world.size  # so that integers divide without a rest
        return numbers.to(dtype).to(device)

    outputs, _ = COLLECTIVES[name]
    return [output.cpu() for output in outputs(rank, world.size, count, make)]


def _compare(rank: int, world: World, name: str) -> None:
    _, dtypes = COLLECTIVES[name]
    different = []
    for dtype in dtypes:
        for count in COUNTS:
            got = outputs_on(world.type, rank, world, name, count, dtype)
            wanted = outputs_on("cpu", rank, world, name, count, dtype)
            assert len(got) == len(wanted)
            if not all(same_bits(a, b) for a, b in zip(got, wanted, strict=True)):
                different.append(f"{dtype} of {count}: {got} instead of {wanted}")
    assert not different, "\n".join(different)


def same_bits(a: Tensor, b: Tensor) -> bool:
    own, other = (each.clone(memory_format=torch.contiguous_format) for each in (a, b))
    return own.dtype == other.dtype and torch.equal(own.view(torch.uint8), other.view(torch.uint8))


def test_ranks_form_a_group(group: RankSet) -> None:
    group.run(sum_of_ranks)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_gives_what_it_gives_on_the_cpu(group: RankSet, name: str) -> None:
    group.run(_compare, name)


def _refuses(rank: int, world: World) -> None:
    if world.is_staged:
        raise LeftOut("staged tensors are reduced on the CPU, which lacks nothing")
    for dtype in NOT_IN_NCCL:
        with pytest.raises(farandole.NotSupported, match="nccl-reduction"):
            dist.all_reduce(torch.ones(4, dtype=dtype, device=world.type))
    tensor = torch.ones(4, dtype=torch.int32, device=world.type)
    with pytest.raises(farandole.NotSupported, match="nccl-reduction"):
        dist.all_reduce(tensor, dist.ReduceOp.BXOR)
    tensor = torch.ones(4, device=world.type)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size] * 4


def test_what_nccl_lacks_is_refused_and_the_group_goes_on(group: RankSet) -> None:
    group.run(_refuses)


def _groups(rank: int, world: World) -> None:
    everyone = dist.new_group()
    alone = [dist.new_group([each]) for each in range(world.size)]
    tensor = torch.full((5,), rank + 1.0, device=world.type)
    dist.all_reduce(tensor, group=alone[rank])
    assert tensor.tolist() == [rank + 1.0] * 5
    dist.all_reduce(tensor, group=everyone)
    assert tensor.tolist() == [world.size * (world.size + 1) / 2] * 5
    for each in [everyone, alone[rank]]:
        dist.destroy_process_group(each)


def test_new_groups_have_communicators_of_their_own(group: RankSet) -> None:
    group.run(_groups)
