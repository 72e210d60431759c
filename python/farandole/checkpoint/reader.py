# SPDX-License-Identifier: Apache-2.0
"""What a load asks of a checkpoint, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch


class Entry(Protocol):
    """A tensor of a checkpoint."""

    @property
    def shape(self) -> Sequence[int]:
        """Of the whole tensor."""

    @property
    def strides(self) -> Sequence[int]:
        """In the order of which its elements are counted."""

    @property
    def dtype(self) -> Any:
        """A torch.dtype."""


class Reader(Protocol):
    """As _C.CheckpointReader."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """By key."""

    @property
    def values(self) -> str:
        """The JSON text of what is no tensor."""

    @property
    def world_size(self) -> int:
        """How many ranks have saved it."""

    def read(self, key: str, offset: int, elements: int) -> torch.Tensor:
        """Elements of a tensor in the order of its strides, in one dimension."""

    def read_whole(self, key: str) -> torch.Tensor:
        """A whole tensor."""

    def stage(self, key: str, offset: int, elements: int) -> torch.Tensor:
        """As read(), for what is copied on and then dropped."""

    def stage_whole(self, key: str) -> torch.Tensor:
        """As read_whole(), likewise."""
