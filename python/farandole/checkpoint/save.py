# SPDX-License-Identifier: Apache-2.0
"""farandole.save_checkpoint()."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from farandole import _C
from farandole.called import collective
from farandole.checkpoint import tree
from farandole.checkpoint.checks import check_tensor
from farandole.checkpoint.names import (
    Models,
    Optimizers,
    models_of,
    optimizers_of,
    own_tensors,
    parameter_names,
    plain,
)
from farandole.checkpoint.optimizer_state import OptimizerSaver
from farandole.checkpoint.rng import add_states
from farandole.checkpoint.writers import writer_of
from farandole.data.epoch_sampler import EpochSampler
from farandole.errors import CheckpointError, Error, InvalidArgument, sentences
from farandole.optim import ZeroRedundancyOptimizer

_last: PendingCheckpoint | None = None
"""The newest save of this process."""


@dataclass(frozen=True)
class PendingCheckpoint:
    """A save that may still be under way."""

    _save: _C.PendingCheckpoint

    def wait(self) -> str:
        """Return the checkpoint's folder when it is on the disk. Local.

        Raises:
            CheckpointError: the save has failed; the checkpoints before are unchanged.
        """
        return str(self._save.wait())

    @property
    def is_done(self) -> bool:
        """Whether wait() would return at once."""
        return bool(self._save.is_done)


@collective
def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Models = None,
    optimizer: Optimizers = None,
    scheduler: Any = None,
    scaler: Any = None,
    sampler: Any = None,
    values: Mapping[str, Any] | None = None,
    step: int | None = None,
    keep: int | None = None,
    rng: bool = True,
    asynchronous: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> PendingCheckpoint:
    """Save a training into a new folder within ``path``. Collective.

    Each rank writes one safetensors file: its shards of the optimizer's state, and its part of what
    all ranks have alike. The folder gets its name when all files are on the disk, so a save that is
    killed leaves the checkpoints before as they were. It can be loaded by any number of ranks.

    Args:
        path: The folder of all checkpoints of this training, which all ranks reach. It belongs to
            one job at a time.
        model: Its parameters and buffers (those of rank 0), or several models by name.
        optimizer: A ZeroRedundancyOptimizer or one of torch's, or several by name.
        scheduler: Anything with state_dict(), as the next two.
        scaler: A GradScaler.
        sampler: A sampler that knows how far it is, or the state_dict() of one that is told.
        values: What else the program wants back: numbers, strings, tensors and containers of these.
            Rank 0's are saved.
        step: Names the folder, "step-00001000"; without it saves are numbered.
        keep: How many checkpoints stay; None: all.
        rng: Whether each rank's states of Python's, NumPy's and torch's random number generators
            are saved.
        asynchronous: Return when this rank's part is copied, and let a thread write it. The next
            save, wait() and the end of the process wait for it.
        process_group: The ranks that train; those of the default group if None.

    Returns:
        Something to wait for.

    Raises:
        CheckpointError: on all ranks, if one could not write; also what the asynchronous save
            before has met.
        InvalidArgument: a value that a checkpoint cannot have.
    """
    with record_function("farandole:save_checkpoint"):
        writer = writer_of("save_checkpoint", os.fspath(path), process_group)
        slices = _C.SliceList(writer.rank, writer.world_size)
        contents = _Contents(slices)
        with _together(writer):
            _check_counts(step, keep)
            contents.add_models(model)
            for name, holder in (
                ("scheduler", scheduler),
                ("scaler", scaler),
                ("sampler", sampler),
            ):
                contents.add_state(name, holder)
            contents.add_values(values)
            if rng:
                add_states(slices, writer.rank)
        with _together(writer):  # no rank is missing in what is collective there
            contents.add_optimizers(optimizer, model)
            text = json.dumps(contents.json)
        _check_same(writer.all_gather(f"{step} {keep} {bool(asynchronous)} {_digest(slices)}"))
        name = "" if step is None else f"step-{step:08d}"
        global _last
        _last = PendingCheckpoint(writer.save(slices, text, name, keep or 0, asynchronous))
        return _last


def last_checkpoint() -> str | None:
    """The folder of the newest save of this process, when it is on the disk; None: it saved none.

    Raises:
        CheckpointError: that save has failed.
    """
    return None if _last is None else _last.wait()


@contextlib.contextmanager
def _together(writer: _C.CheckpointWriter) -> Iterator[None]:
    """All ranks do it, or all raise. Collective at the end."""
    try:
        yield
    except Exception as met:
        if isinstance(met, Error) and not isinstance(met, InvalidArgument):
            raise  # the other ranks have it too
        with contextlib.suppress(CheckpointError):
            writer.agree("save_checkpoint()", f"{type(met).__qualname__}: {met}")
        raise
    writer.agree("save_checkpoint()", "")


def _check_counts(step: int | None, keep: int | None) -> None:
    for name, value, least in (("step", step, 0), ("keep", keep, 1)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise InvalidArgument(
                sentences(
                    "checkpoint-count",
                    f"save_checkpoint() got {name}={value!r}.",
                    f"it is a whole number, at least {least}.",
                    "pass such a number, or leave it out.",
                )
            )


def _digest(slices: _C.SliceList) -> str:
    """Of what all ranks must have alike but for the values."""
    return hashlib.sha256(slices.common.encode()).hexdigest()


def _check_same(digests: list[str]) -> None:
    """Raise on all ranks where one has other tensors: each writes a part of those of all."""
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise InvalidArgument(
                sentences(
                    "checkpoint-ranks-differ",
                    f"save_checkpoint() got other arguments or tensors on rank {rank} than on rank "
                    "0.",
                    "step, keep and asynchronous must be the same; and each rank writes its part "
                    "of parameters, and of the state of optimizers that are not sharded, whose "
                    "names, shapes, strides and dtypes must be the same.",
                    "pass the same on every rank.",
                )
            )


class _Contents:
    """What a checkpoint has: slices of this rank, and JSON."""

    def __init__(self, slices: _C.SliceList) -> None:
        self._slices = slices
        self.json: dict[str, Any] = {"aliases": {}, "models": {}, "optimizers": {}, "states": {}}

    def add_models(self, models: Models) -> None:
        """Every tensor of state_dict() once, however many names it has."""
        for prefix, model in models_of(models).items():
            known: dict[int, str] = {}
            parameters = {id(each) for each in model.parameters()}
            own = own_tensors(model)
            state = {plain(n): value for n, value in model.state_dict(keep_vars=True).items()}
            self.json["models"][prefix] = list(state)
            for name, value in state.items():
                key = prefix + name
                if name not in own or own[name] is not value:
                    self.json["states"][f"model/{key}"] = tree.encode(value, key, self._keep)
                elif id(value) in known:
                    self.json["aliases"][key] = known[id(value)]
                else:
                    check_tensor(key, value)
                    _C.check_apart(key, value)
                    known[id(value)] = key
                    self._add_tensor(key, value, id(value) in parameters)

    def _add_tensor(self, key: str, tensor: torch.Tensor, is_shared: bool) -> None:
        """Buffers are those of rank 0."""
        if is_shared:
            self._slices.add_shared(key, tensor)
        elif self._slices.rank == 0:
            self._slices.add_own(key, tensor)

    def add_optimizers(self, optimizers: Optimizers, models: Models) -> None:
        """Collective if one is sharded."""
        known = parameter_names(models_of(models))
        for prefix, optimizer in optimizers_of(optimizers).items():
            if isinstance(optimizer, ZeroRedundancyOptimizer):
                optimizer.wait()  # for parameters that are on their way
            saver = OptimizerSaver(prefix, optimizer, known, self._slices)
            self.json["optimizers"][prefix] = saver.save()

    def add_state(self, name: str, holder: Any) -> None:
        """What its state_dict() returns, or what the program has made of it."""
        if holder is not None:
            if isinstance(holder, EpochSampler):
                raise InvalidArgument(
                    sentences(
                        "checkpoint-sampler",
                        f"save_checkpoint() got {name}= as a {type(holder).__qualname__}.",
                        "it does not know how far the training is: loaders ask it for samples "
                        "ahead.",
                        f"pass its state at that place: {name}=sampler.state_dict(consumed).",
                    )
                )
            state = holder if isinstance(holder, Mapping) else holder.state_dict()
            self.json["states"][name] = tree.encode(dict(state), name, self._keep)

    def add_values(self, values: Mapping[str, Any] | None) -> None:
        """Those of the program."""
        self.json["values"] = tree.encode(dict(values or {}), "values", self._keep)

    def _keep(self, at: str, tensor: torch.Tensor) -> str:
        """Rank 0's, whose JSON is saved."""
        key = self._slices.new_key(at)
        if self._slices.rank == 0:
            self._slices.add_own(key, tensor)
        return key
