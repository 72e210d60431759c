# SPDX-License-Identifier: Apache-2.0
"""Gives all ranks of the default group what rank 0 has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from farandole import collectives
from farandole.torch_names import broadcast_object_list


def broadcast_object(value: Any, root_rank: int = 0) -> Any:
    """The object of one rank, pickled. Collective."""
    box = [value]
    broadcast_object_list(box, src=root_rank)
    return box[0]


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Those of rank 0, in place. Collective."""
    for tensor in tensors:
        collectives.broadcast(tensor.detach(), 0)
