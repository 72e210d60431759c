# SPDX-License-Identifier: Apache-2.0
"""A tensor of a checkpoint that is read when, and as far as, it is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    _read: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
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

    def stage(self, parameter: torch.Tensor, offset: int, elements: int) -> None:
        """Read the elements of a piece of a parameter of its shape."""
        if self._lies_as(parameter):
            if (offset, elements) not in self._read:
                self._read[offset, elements] = self.reader.stage(self.key, offset, elements)
        else:
            self.stage_whole()

    def stage_whole(self) -> None:
        """Read all of it."""
        if self._whole is None:
            self._whole = self.reader.read_whole(self.key)

    def part(self, parameter: torch.Tensor, offset: int, elements: int) -> torch.Tensor:
        """These elements, in one dimension."""
        self.stage(parameter, offset, elements)
        if self._lies_as(parameter):
            return self._read[offset, elements]
        alike = torch.empty_like(parameter, dtype=self.dtype, device="cpu")
        flat = alike.copy_(self.whole()).as_strided((alike.numel(),), (1,))
        return flat[offset : offset + elements]

    def whole(self) -> torch.Tensor:
        """All of it, in its shape, on the CPU."""
        self.stage_whole()
        assert self._whole is not None
        return self._whole
