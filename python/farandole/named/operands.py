# SPDX-License-Identifier: Apache-2.0
"""Which tensors the operations of NamedCollectives take, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farandole import arguments
from farandole.errors import InvalidArgument, NotSupported, sentences


def check(operation: str, op: str, tensors: Sequence[Tensor], *, in_place: bool = False) -> None:
    """Refuse what would fail on every rank after all of them had agreed on it. Local.

    Raises:
        InvalidArgument: one is not a tensor, or is to be filled and has elements that share memory.
        NotSupported: one is sparse, quantized, has no memory (meta), or is an average of bools.
    """
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise arguments.wrong(operation, "tensor", tensor, "a torch.Tensor")
        if tensor.layout is not torch.strided:
            raise _refused(operation, f"a tensor of the layout {tensor.layout}")
        if tensor.is_quantized:
            raise _refused(operation, "a quantized tensor")
        if in_place and _overlaps(tensor):
            raise InvalidArgument(
                sentences(
                    "named-overlap",
                    f"{operation} cannot fill a tensor of the shape {tuple(tensor.shape)} and the "
                    f"strides {tensor.stride()}.",
                    "some of its elements share memory, as those of expand() do.",
                    "pass tensor.contiguous().",
                )
            )
        if tensor.device.type == "meta":
            raise _refused(operation, "a tensor on the device meta")
        if op == "average" and tensor.dtype is torch.bool:
            raise _refused(operation, "a tensor of bools to average")


def _overlaps(tensor: Tensor) -> bool:
    return any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _refused(operation: str, what: str) -> NotSupported:
    return NotSupported(
        sentences(
            "named-tensor",
            f"{operation} got {what}.",
            "ranks exchange the elements of dense tensors in memory, and bools have no average.",
            "convert the tensor first; sparse_all_reduce() adds sparse ones, and op 'max' tells "
            "whether any bool is true.",
        )
    )
