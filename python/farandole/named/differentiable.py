# SPDX-License-Identifier: Apache-2.0
"""The operations of NamedCollectives that wait, with gradients.

Gradients are those of a loss that is the average of the ranks' losses, as Horovod defines them: the
gradient of a broadcast or of an all_gather is an average over the ranks. That of an all_reduce is
reduced by the same op. All ranks run backward through the same operations; backward names them by
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from farandole.named import operations
from farandole.named.named_collectives import NamedCollectives


def all_reduce(
    named: NamedCollectives,
    tensors: Sequence[Tensor],
    name: str | None = None,
    *,
    op: str = "average",
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> list[Tensor]:
    """As operations.all_reduce()."""
    results: Sequence[Tensor] = _AllReduce.apply(  # type: ignore[no-untyped-call]
        named, name, op, prescale, postscale, *tensors
    )
    return list(results)


def all_gather(
    named: NamedCollectives, tensors: Sequence[Tensor], name: str | None = None
) -> list[Tensor]:
    """As operations.all_gather()."""
    results: Sequence[Tensor] = _AllGather.apply(  # type: ignore[no-untyped-call]
        named, name, *tensors
    )
    return list(results)


def broadcast(
    named: NamedCollectives, tensor: Tensor, root: int, name: str | None = None
) -> Tensor:
    """As operations.broadcast()."""
    result: Tensor = _Broadcast.apply(  # type: ignore[no-untyped-call]
        named, name, root, tensor
    )
    return result


def all_to_all(
    named: NamedCollectives,
    tensor: Tensor,
    splits: Sequence[int] | None = None,
    name: str | None = None,
) -> tuple[Tensor, list[int]]:
    """As operations.all_to_all(); also how many rows came from each rank."""
    received: list[int] = []
    result: Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
        named, name, splits, received, tensor
    )
    return result, received


def reduce_scatter(
    named: NamedCollectives,
    tensors: Sequence[Tensor],
    name: str | None = None,
    *,
    op: str = "average",
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> list[Tensor]:
    """As operations.reduce_scatter()."""
    results: Sequence[Tensor] = _ReduceScatter.apply(  # type: ignore[no-untyped-call]
        named, name, op, prescale, postscale, *tensors
    )
    return list(results)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        named: NamedCollectives,
        name: str | None,
        op: str,
        prescale: float,
        postscale: float,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.named = named
        ctx.options = {"op": op, "prescale": prescale, "postscale": postscale}
        handle = operations.all_reduce(named, tensors, name, **ctx.options, will_wait=True)
        return tuple(named.wait(handle))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        handle = operations.all_reduce(ctx.named, gradients, **ctx.options, will_wait=True)
        return (None,) * 5 + tuple(ctx.named.wait(handle))


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, named: NamedCollectives, name: str | None, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.named = named
        handle = operations.all_gather(named, tensors, name, will_wait=True)
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        return tuple(named.wait(handle))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        named = ctx.named
        averages = operations.all_reduce(named, gradients)
        rows = operations.all_gather(
            named, [torch.tensor([ctx.rows], device="cpu")], will_wait=True
        )
        before = named.wait(rows)[0][: named.rank].sum(0).tolist()
        parts = [
            average.narrow(0, first, count)
            for average, first, count in zip(named.wait(averages), before, ctx.rows, strict=True)
        ]
        return (None, None, *parts)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, named: NamedCollectives, name: str | None, root: int, tensor: Tensor
    ) -> Tensor:
        ctx.named, ctx.root = named, root
        handle = operations.broadcast(named, tensor, root, name, will_wait=True)
        return named.wait(handle)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        handle = operations.all_reduce(ctx.named, [gradient], will_wait=True)
        average = ctx.named.wait(handle)[0]
        return None, None, None, average if ctx.named.rank == ctx.root else average.zero_()


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        named: NamedCollectives,
        name: str | None,
        splits: Sequence[int] | None,
        received: list[int],
        tensor: Tensor,
    ) -> Tensor:
        handle = operations.all_to_all(named, tensor, splits, name, will_wait=True)
        result = named.wait(handle)[0]
        received += handle.received_splits
        ctx.named, ctx.received = named, received
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        handle = operations.all_to_all(ctx.named, gradient, ctx.received, will_wait=True)
        return None, None, None, None, ctx.named.wait(handle)[0]


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        named: NamedCollectives,
        name: str | None,
        op: str,
        prescale: float,
        postscale: float,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.named = named
        ctx.factor = prescale * postscale * (named.world_size if op == "sum" else 1)
        handle = operations.reduce_scatter(
            named, tensors, name, op=op, prescale=prescale, postscale=postscale, will_wait=True
        )
        return tuple(named.wait(handle))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [gradient * ctx.factor for gradient in gradients]
        handle = operations.all_gather(ctx.named, scaled, will_wait=True)
        return (None,) * 5 + tuple(ctx.named.wait(handle))
