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
        """How many ranks have saved their generators of random numbers in it; 0 if none."""

    def read(self, key: str, offset: int, elements: int) -> torch.Tensor:
        """Elements of a tensor in the order of its strides, in one dimension."""

    def read_whole(self, key: str) -> torch.Tensor:
        """A whole tensor."""

    def read_into(self, key: str, offset: int, into: torch.Tensor) -> None:
        """As read(), into a contiguous tensor of one dimension, as many elements as that has."""

    def read_whole_into(self, key: str, into: torch.Tensor) -> None:
        """A whole tensor, into one of its shape."""

    def check(self, key: str, offset: int, elements: int) -> None:
        """Fail if read_into() would, before anything is changed."""

    def check_share(self, key: str, rank: int, world_size: int) -> None:
        """The same of a rank's share of a whole tensor that all ranks will read."""
