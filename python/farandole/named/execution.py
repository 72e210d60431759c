# SPDX-License-Identifier: Apache-2.0
"""Runs what the ranks have agreed on, in one order on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from farandole import _C, arguments
from farandole.errors import InvalidArgument, NotSupported
from farandole.named import request
from farandole.named.adasum import adasum_
from farandole.named.agreement import Decision
from farandole.named.handle import Handle
from farandole.named.request import Request, Signature

# Larger tensors are reduced alone: a copy costs more than a call.
FUSED_TENSOR_BYTES = 1 << 18
# Of a call on host memory that ranks share: what is joined stays in the cache.
_CACHED_BYTES = 1 << 20


@dataclass
class Part:
    """Tensors of one kind, to be reduced in place: one, or small ones that share a call."""

    tensors: list[Tensor]
    op: str
    prescale: float
    postscale: float
    handle: Handle | None = None
    stream: torch.Stream | None = None
    nbytes: int = 0
    is_alone: bool = False
    """Whether it shares no call with another part."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Parts of one kind may share a call."""
        first = self.tensors[0]
        return (first.dtype, first.device.type, self.op, self.prescale, self.postscale)


class Execution:
    """Runs decisions over a group, which is used for nothing else.

    Threads: one at a time.
    """

    def __init__(self, group: dist.ProcessGroup, fusion_bytes: int) -> None:
        """Small tensors share calls of at most ``fusion_bytes``."""
        self._group = group
        self._rank = group.rank()
        self._world_size = group.size()
        backend: Any = _C.ProcessGroupFarandole.of(group)
        self.shares_memory: bool = backend.local_world_size == self._world_size
        """Whether ranks can, as far as is known."""
        cached = min(fusion_bytes, _CACHED_BYTES) if self.shares_memory else fusion_bytes
        self._most_bytes = {True: cached, False: fusion_bytes}  # by whether it is on the CPU
        self.zeros_index: int | None = None
        """The index of the accelerator where a rank that has joined makes its zeros."""

    @torch.no_grad()
    def run(self, work: Sequence[tuple[Decision, Request | None, Handle | None]]) -> None:
        """Fill in the handles' results. Collective; the request is None of a rank that joined."""
        parts: list[Part] = []
        resolved = [each for _, own, _ in work if own is not None for each in _resolved(own)]
        for decision, own, handle in work:
            operation = decision.signature.operation
            if operation == request.ALL_REDUCE:
                parts += self._parts(decision, own, handle)
            elif operation != request.BARRIER and own is not None and handle is not None:
                with _misuse_told_to([handle]), _on(own.stream):
                    self._move(decision, own, handle)
        self._reduce_all(parts)
        for stream, view, memory in resolved:
            with _on(stream):
                view.copy_(memory)
        for decision, _, handle in work:
            wanted = {"" if each is None else each.wants_memory for each in decision.signatures}
            if len(wanted) == 1 and "" not in wanted:
                self._allocate(decision.signature, handle)

    def _allocate(self, signature: Signature, handle: Handle | None) -> None:
        dtype = request.dtype_of(signature.dtypes[0])
        try:
            memory = _C.symmetric_empty(list(signature.shapes[0]), dtype, self._group)
        except NotSupported:  # on all ranks
            self.shares_memory = False
            return
        if handle is not None:
            handle.memory = memory

    def _move(self, decision: Decision, own: Request, handle: Handle) -> None:
        for index, tensor in enumerate(own.inputs):
            source = _without_gradient(tensor)
            if own.operation == request.BROADCAST:
                output = source if own.in_place else source.clone()
                _C.broadcast(output, own.root, self._group, False)
            elif own.operation == request.ALL_GATHER:
                output = self._all_gather(decision, index, source)
            elif own.operation == request.ALL_TO_ALL:
                output = self._all_to_all(decision, own, source, handle)
            else:
                output = self._reduce_scatter(own, source)
            handle.result.append(output)

    def _all_gather(self, decision: Decision, index: int, source: Tensor) -> Tensor:
        rows = [each.shapes[index][0] for each in decision.signatures if each is not None]
        most = max(rows)
        padded = source
        if source.shape[0] < most:
            padded = source.new_zeros((most, *source.shape[1:]))
            padded[: source.shape[0]] = source
        gathered = source.new_empty((most * self._world_size, *source.shape[1:]))
        if gathered.numel():
            _C.all_gather(gathered, padded.contiguous(), self._group, False)
        if min(rows) == most:
            return gathered
        blocks = torch.split(gathered, most)
        return torch.cat([block[:count] for block, count in zip(blocks, rows, strict=True)])

    def _all_to_all(
        self, decision: Decision, own: Request, source: Tensor, handle: Handle
    ) -> Tensor:
        received = [each.splits[self._rank] for each in decision.signatures if each is not None]
        output = source.new_empty((sum(received), *source.shape[1:]))
        _C.all_to_all(output, source.contiguous(), received, own.splits, self._group, False)
        handle.received_splits = received
        return output

    def _reduce_scatter(self, own: Request, source: Tensor) -> Tensor:
        part = Part([source.clone()], own.op, own.prescale, own.postscale)
        _scale(part.tensors, part.prescale)
        rows = rows_of_parts(source.shape[0], self._world_size)
        most = rows[0]
        output = source.new_empty((most, *source.shape[1:]))
        if output.numel():
            blocks = source.new_zeros((most * self._world_size, *source.shape[1:]))
            for block, piece in zip(
                torch.split(blocks, most), torch.split(part.tensors[0], rows), strict=True
            ):
                block[: piece.shape[0]] = piece
            _C.reduce_scatter(output, blocks, _native_op(part), self._group, False)
        finished = output[: rows[self._rank]].clone()
        self._finish(Part([finished], own.op, 1.0, own.postscale))
        return finished

    def _parts(
        self, decision: Decision, own: Request | None, handle: Handle | None
    ) -> Iterator[Part]:
        signature = decision.signature
        op, factors = signature.op, (signature.prescale, signature.postscale)
        stream = None if own is None else own.stream
        with _on(stream):
            tensors = self._zeros_of(signature) if own is None else _outputs_of(own)
        if handle is not None:
            handle.result += tensors
        if own is not None and own.joins:
            size = sum([tensor.nbytes for tensor in tensors])
            yield Part(tensors, op, *factors, handle, stream, size, size > FUSED_TENSOR_BYTES)
            return
        small: dict[torch.dtype, Part] = {}
        for tensor in tensors:
            size = tensor.nbytes
            if size > FUSED_TENSOR_BYTES or (op == "adasum" and size):
                yield Part([tensor], op, *factors, handle, stream, size, is_alone=True)
            elif size:
                part = small.get(tensor.dtype)
                if part is not None and part.nbytes + size <= self._most_bytes[tensor.is_cpu]:
                    part.tensors.append(tensor)
                    part.nbytes += size
                    continue
                if part is not None:
                    yield part
                small[tensor.dtype] = Part([tensor], op, *factors, handle, stream, size)
        yield from small.values()

    def _zeros_of(self, signature: Signature) -> list[Tensor]:
        device = device_of(signature.device, self.zeros_index)
        return [
            torch.zeros(shape, dtype=request.dtype_of(dtype), device=device)
            for dtype, shape in zip(signature.dtypes, signature.shapes, strict=True)
        ]

    def _reduce_all(self, parts: Iterable[Part]) -> None:
        fused: dict[tuple[object, ...], list[Part]] = {}
        for part in parts:
            if part.is_alone:
                self._reduce([part])
            else:
                fused.setdefault(part.kind, []).append(part)
        for alike in fused.values():
            for batch in _batches(alike, self._most_bytes[alike[0].tensors[0].is_cpu]):
                self._reduce(batch)

    def _reduce(self, parts: Sequence[Part]) -> None:
        streams = list(dict.fromkeys(part.stream for part in parts if part.stream is not None))
        for other in streams[1:]:
            streams[0].wait_stream(other)
        with _misuse_told_to([part.handle for part in parts]), _on(next(iter(streams), None)):
            self._reduce_together(parts)
        for other in streams[1:]:
            other.wait_stream(streams[0])

    def _reduce_together(self, parts: Sequence[Part]) -> None:
        for part in parts:
            _scale(part.tensors, part.prescale)
        first = parts[0]
        tensors = [tensor for part in parts for tensor in part.tensors]
        if first.op == "adasum":
            adasum_(tensors[0], self._group)
        elif len(tensors) == 1:
            _C.all_reduce(tensors[0], _native_op(first), self._group, False)
        else:
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp, options.asyncOp = _native_op(first), False
            self._group.allreduce_coalesced(tensors, options).wait()
        for part in parts:
            self._finish(part)

    def _finish(self, part: Part) -> None:
        if part.op == "average" and not _is_real(part.tensors[0]):
            for tensor in part.tensors:
                tensor.div_(self._world_size, rounding_mode="trunc")
        _scale(part.tensors, part.postscale)


def _outputs_of(own: Request) -> list[Tensor]:
    """Where results go, which begin as the inputs."""
    sources = map(_without_gradient, own.inputs)
    return list(sources) if own.in_place else [source.clone() for source in sources]


def _resolved(own: Request) -> list[tuple[torch.Stream | None, Tensor, Tensor]]:
    """Views in whose place memory is filled, with it, and the stream for both."""
    with _on(own.stream):
        return [(own.stream, view, memory) for view, memory in own.resolve()]


def _without_gradient(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _on(stream: torch.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else stream


@contextmanager
def _misuse_told_to(handles: Iterable[Handle | None]) -> Iterator[None]:
    """What no rank can run, as all ranks find before they send: an error of these alone."""
    try:
        yield
    except (InvalidArgument, NotSupported) as error:
        for handle in handles:
            if handle is not None:
                handle.error = error


def rows_of_parts(rows: int, world_size: int) -> list[int]:
    """How many rows each rank gets of a reduce_scatter; the first ranks get what is left over."""
    least, more = divmod(rows, world_size)
    return [least + (rank < more) for rank in range(world_size)]


def device_of(kind: str, index: int | None) -> torch.device:
    """Where a rank that has joined makes its zeros."""
    return torch.device(kind) if kind == "cpu" or index is None else torch.device(kind, index)


def _native_op(part: Part) -> dist.ReduceOp:
    """Averages of integers are sums first, which are divided then and rounded toward zero."""
    name = {"average": "avg" if _is_real(part.tensors[0]) else "sum"}.get(part.op, part.op)
    return arguments.op_of("all_reduce", name)


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _scale(tensors: Iterable[Tensor], factor: float) -> None:
    """Times ``factor``; integers in float64, rounded toward zero."""
    if factor == 1.0:
        return
    for tensor in tensors:
        if _is_real(tensor):
            tensor.mul_(factor)
        else:
            tensor.copy_(tensor.double().mul_(factor))


def _batches(parts: Sequence[Part], most_bytes: int) -> Iterable[list[Part]]:
    batch: list[Part] = []
    filled = 0
    for part in parts:
        if batch and filled + part.nbytes > most_bytes:
            yield batch
            batch, filled = [], 0
        batch.append(part)
        filled += part.nbytes
    if batch:
        yield batch
