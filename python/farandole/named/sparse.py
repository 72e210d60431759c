# SPDX-License-Identifier: Apache-2.0
"""Sums and averages of sparse tensors, of which each rank has other indices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from farandole import arguments
from farandole.named import operations
from farandole.named.handle import Handle
from farandole.named.named_collectives import NamedCollectives


class SparseSum(NamedTuple):
    """A sparse all_reduce on its way: all ranks' values and indices."""

    named: NamedCollectives
    values: Handle
    indices: Handle
    size: torch.Size
    is_average: bool

    def wait(self) -> Tensor:
        """The result, which has an index several times if several ranks have it."""
        values = self.named.wait(self.values)[0]
        indices = self.named.wait(self.indices)[0]
        if self.is_average:
            values = values / self.named.world_size
        return torch.sparse_coo_tensor(indices.t(), values, self.size, check_invariants=False)


def sparse_all_reduce(
    named: NamedCollectives, tensor: Tensor, name: str | None = None, *, op: str = "average"
) -> SparseSum:
    """Begin to add sparse tensors of one shape; ``op`` is "average" or "sum".

    Raises:
        InvalidArgument: the tensor has another layout than torch.sparse_coo, or ``op`` is another.
    """
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        raise arguments.wrong("sparse_all_reduce", "tensor", tensor, "a torch.Tensor in COO format")
    if op not in ("average", "sum"):
        raise arguments.wrong("sparse_all_reduce", "op", op, '"average" or "sum"')
    parts = (tensor._values(), tensor._indices().t().contiguous())
    names = (None, None) if name is None else (f"{name}.values", f"{name}.indices")
    values, indices = (
        operations.all_gather(named, [part], each) for part, each in zip(parts, names, strict=True)
    )
    return SparseSum(named, values, indices, tensor.size(), op == "average")
