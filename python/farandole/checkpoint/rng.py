# SPDX-License-Identifier: Apache-2.0
"""States of this rank's random number generators: Python's, NumPy's and torch's."""

from __future__ import annotations

import json
import logging
import random
import sys
from typing import Any

import torch

from farandole import _C
from farandole.checkpoint import tree
from farandole.checkpoint.reader import Reader
from farandole.errors import CheckpointError, sentences

_logger = logging.getLogger(__name__)


def _key(rank: int, generator: str) -> str:
    return f"rng/rank-{rank:05d}/{generator}"


def _device() -> str | None:
    """The type of the accelerator whose generator the program uses."""
    is_used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return "cuda" if is_used else None


def add_states(slices: _C.SliceList, rank: int) -> None:
    """Let this rank save its own."""
    slices.add_own(_key(rank, "torch"), torch.get_rng_state())
    slices.add_own(_key(rank, "python"), _bytes_of(random.getstate()))
    if numpy := sys.modules.get("numpy"):
        state = numpy.random.get_state(legacy=True)
        slices.add_own(_key(rank, "numpy"), _bytes_of([state[0], state[1].tolist(), *state[2:]]))
    if _device() == "cuda":
        slices.add_own(_key(rank, "cuda"), torch.cuda.get_rng_state())


class RngStates:
    """What this rank finds of its own: nothing if other ranks have saved the checkpoint."""

    def __init__(self, reader: Reader, rank: int, world_size: int) -> None:
        """Read and check them, so that change() does not fail.

        Raises:
            CheckpointError: one is no state of its generator.
        """
        self._states: dict[str, Any] = {}
        if reader.world_size == 0:  # none were saved
            return
        if reader.world_size != world_size:
            if rank == 0:
                _logger.info(
                    "ranks that saved the checkpoint: %d, ranks that load it: %d; the states of "
                    "random number generators are not loaded.",
                    reader.world_size,
                    world_size,
                )
            return
        for generator in ("torch", "python", "numpy", "cuda"):
            if _key(rank, generator) in reader.entries:
                state = reader.read_whole(_key(rank, generator))
                try:
                    self._states[generator] = _checked(generator, state)
                except Exception as error:  # whatever the generators raise
                    raise _damaged(rank, generator, error) from error

    def change(self) -> None:
        """Set the generators."""
        for generator, state in self._states.items():
            if state is None:
                continue
            if generator == "torch":
                torch.set_rng_state(state)
            elif generator == "python":
                random.setstate(state)
            elif generator == "numpy":
                sys.modules["numpy"].random.set_state(state)
            else:
                torch.cuda.set_rng_state(state)


def _checked(generator: str, state: torch.Tensor) -> Any:
    """What the generator takes, as another one has taken it; None if the program does not use it.

    Raises whatever the generators raise.
    """
    if generator == "torch":
        torch.Generator().set_state(state)
        return state
    if generator == "python":
        value = _value_of(state)
        random.Random().setstate(value)
        return value
    if generator == "numpy" and (numpy := sys.modules.get("numpy")):
        value = tuple(_value_of(state))
        numpy.random.RandomState().set_state(value)
        return value
    if generator == "cuda" and _device() == "cuda":
        torch.Generator("cuda").set_state(state)
        return state
    return None


def _damaged(rank: int, generator: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        sentences(
            "checkpoint-rng",
            f"the checkpoint's state of the {generator} random number generator for rank {rank} is "
            "invalid.",
            f"{type(error).__name__}: {error}.",
            "pass rng=False to continue with other random numbers, or load another checkpoint.",
        )
    )


def _bytes_of(value: Any) -> torch.Tensor:
    text = json.dumps(tree.encode(value, "rng")).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _value_of(state: torch.Tensor) -> Any:
    return tree.decode(json.loads(state.numpy().tobytes()), lambda key: key)
