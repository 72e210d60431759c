# SPDX-License-Identifier: Apache-2.0
"""What one rank has of the state of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from farandole import _C
from farandole.optim.state_dicts import State


@dataclass(frozen=True)
class OwnedState:
    """Of the elements of one piece; nothing of other ranks is in it."""

    group: int
    parameter: int
    """In its group."""
    piece: _C.Piece
    parts: dict[str, torch.Tensor]
    """What is cut as the parameter is: of one dimension, views of what the next step changes."""
    rest: State
    """What the parameter has once, or, where it is whole on this rank, all but master weights."""
