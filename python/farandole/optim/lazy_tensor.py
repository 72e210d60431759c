# SPDX-License-Identifier: Apache-2.0
"""Tensors of a state that is loaded, which are read as far as they are needed."""

from __future__ import annotations

import abc
from typing import Any

import torch

from farandole.optim.sharded_state import ShardedState


class LazyTensor(abc.ABC):
    """In place of a tensor in what load_state_dict() is given."""

    @abc.abstractmethod
    def stage(self, parameter: torch.Tensor, offset: int, elements: int) -> None:
        """Read what part() with the same arguments will return, so that it cannot fail then."""

    @abc.abstractmethod
    def stage_whole(self) -> None:
        """Read what whole() will return."""

    @abc.abstractmethod
    def part(self, parameter: torch.Tensor, offset: int, elements: int) -> torch.Tensor:
        """Elements in the order of the parameter's memory, in one dimension; on the CPU."""

    @abc.abstractmethod
    def whole(self) -> torch.Tensor:
        """All elements; on the CPU."""


def materialized(value: Any) -> Any:
    """The same with what is read of a checkpoint in place of what is to be read."""
    if isinstance(value, LazyTensor | ShardedState):
        return value.whole()
    if isinstance(value, dict):
        return {key: materialized(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(materialized(each) for each in value)
    return value
