# SPDX-License-Identifier: Apache-2.0
"""A tensor of a checkpoint that is read when, and as far as, it is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from farandole.checkpoint.reader import Entry, Reader
from farandole.optim.lazy_tensor import LazyTensor


@dataclass
class SavedTensor(LazyTensor):
    """What stands in the state of a parameter while a checkpoint is loaded."""

    reader: Reader
    key: str
    entry: Entry
    """Of the key."""
    _whole: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor."""
        return torch.Size(self.entry.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""
        dtype: torch.dtype = self.entry.dtype
        return dtype

    def _lies_as(self, parameter: torch.Tensor) -> bool:
        """Whether its elements are in the order of the parameter's memory."""
        saved, own = self.entry.strides, parameter.stride()
        sizes = parameter.shape
        return all(a == b for a, b, size in zip(saved, own, sizes, strict=True) if size > 1)

    def check(self, parameter: torch.Tensor, offset: int, elements: int) -> None:
        """Of a piece of a parameter of its shape."""
        if self._lies_as(parameter):
            self.reader.check(self.key, offset, elements)
        else:
            self.whole()

    def copy_part(self, parameter: torch.Tensor, offset: int, into: torch.Tensor) -> None:
        """Its elements from an offset on."""
        if self._lies_as(parameter):
            self.reader.read_into(self.key, offset, into)
            return
        alike = torch.empty_like(parameter, dtype=self.dtype, device="cpu")
        flat = alike.copy_(self.whole()).as_strided((alike.numel(),), (1,))
        into.copy_(flat[offset : offset + into.numel()])

    def whole(self) -> torch.Tensor:
        """All of it, in its shape, on the CPU; it is kept."""
        if self._whole is None:
            self._whole = self.reader.read_whole(self.key)
        return self._whole
