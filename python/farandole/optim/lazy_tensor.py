# SPDX-License-Identifier: Apache-2.0
"""Tensors of a state that is loaded, which are read as far as they are needed."""

from __future__ import annotations

import abc
from typing import Any

import torch

from farandole.optim.sharded_state import ShardedState


class LazyTensor(abc.ABC):
    """In place of a tensor in what load_state_dict() is given."""

    @property
    @abc.abstractmethod
    def dtype(self) -> torch.dtype:
        """Of its elements."""

    @abc.abstractmethod
    def check(self, parameter: torch.Tensor, offset: int, elements: int) -> None:
        """Fail if copy_part() of so many elements would."""

    @abc.abstractmethod
    def copy_part(self, parameter: torch.Tensor, offset: int, into: torch.Tensor) -> None:
        """Read elements in the order of the parameter's memory into a tensor of one dimension."""

    @abc.abstractmethod
    def whole(self) -> torch.Tensor:
        """All elements, which are kept; on the CPU."""


def materialized(value: Any) -> Any:
    """The same with what is read of a checkpoint in place of what is to be read."""
    if isinstance(value, LazyTensor | ShardedState):
        return value.whole()
    if isinstance(value, dict):
        return {key: materialized(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(materialized(each) for each in value)
    return value
