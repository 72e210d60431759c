# SPDX-License-Identifier: Apache-2.0
"""Whole tensors of what each rank has by piece, and the float32 values of half parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole import _C
from farandole.optim.memory_order import copy_part
from farandole.optim.state_dicts import State

MASTER = "master_parameter"
"""In the state of a half parameter: its value in float32, which is what is updated."""

HALVES = (torch.float16, torch.bfloat16)


def state_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Of the optimizer's state, and of what an optimizer that runs on shards gets."""
    return torch.float32 if parameter.dtype in HALVES else parameter.dtype


def gather(
    engine: _C.ShardedOptimizer,
    index: int,
    tensors: Sequence[torch.Tensor | None],
    dtypes: Sequence[torch.dtype | None],
    to: int,
) -> list[torch.Tensor | None]:
    """Bring the pieces of a group together on rank ``to``, or on all if it is -1. Collective.

    Args:
        engine: Whose pieces they are.
        index: Of the group.
        tensors: By piece of this rank.
        dtypes: By parameter, the same on all ranks; None if there is nothing of it.
        to: Who gets the result, by shard_rank.

    Returns:
        By parameter: a tensor in its shape, or None; nothing on other ranks.
    """
    whole: list[torch.Tensor | None] = []
    pieces = engine.pieces(index)
    for dtype in dict.fromkeys(each for each in dtypes if each is not None):
        parts = [
            tensor
            if tensor is not None and dtypes[piece.parameter] == dtype
            else torch.zeros(piece.elements, dtype=dtype)
            for piece, tensor in zip(pieces, tensors, strict=True)
        ]
        gathered = engine.gather(index, parts, to)
        whole = whole or [None for _ in gathered]
        for number, tensor in enumerate(gathered):
            if dtypes[number] == dtype:
                whole[number] = tensor
    return whole


def gather_masters(
    engine: _C.ShardedOptimizer,
    index: int,
    parameters: Sequence[torch.Tensor],
    states: Sequence[State],
    to: int,
) -> None:
    """Add the float32 values of half parameters to ``states`` of those that have been stepped.

    Collective.
    """
    if not engine.master_weights:
        return
    stepped = engine.steps(index)
    dtypes = [
        torch.float32 if p.dtype in HALVES and steps > 0 else None
        for p, steps in zip(parameters, stepped, strict=True)
    ]
    tensors = masters_of(engine, index, parameters)
    for state, tensor in zip(states, gather(engine, index, tensors, dtypes, to), strict=False):
        if tensor is not None:
            state[MASTER] = tensor


def masters_of(
    engine: _C.ShardedOptimizer, index: int, parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """By piece of this rank: the float32 values of half parameters."""
    masters = iter(engine.state(index, MASTER) if engine.master_weights else [])
    return [
        next(masters, None) if _is_half(parameters, piece) else None
        for piece in engine.pieces(index)
    ]


def load_masters(
    engine: _C.ShardedOptimizer,
    index: int,
    parameters: Sequence[torch.Tensor],
    states: Sequence[State],
) -> None:
    """Take this rank's part of what was saved, or else of the parameters. Local."""
    if not engine.master_weights:
        return
    pieces = [piece for piece in engine.pieces(index) if _is_half(parameters, piece)]
    for piece, master in zip(pieces, engine.state(index, MASTER), strict=True):
        parameter = parameters[piece.parameter]
        value = states[piece.parameter].get(MASTER, parameter)
        copy_part(value, parameter, piece, master)


def _is_half(parameters: Sequence[torch.Tensor], piece: _C.Piece) -> bool:
    return parameters[piece.parameter].dtype in HALVES
