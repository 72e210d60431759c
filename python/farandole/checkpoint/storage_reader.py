# SPDX-License-Identifier: Apache-2.0
"""Lets torch.distributed.checkpoint.load() read what save_checkpoint() has written."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from farandole import _C
from farandole.checkpoint import tree
from farandole.checkpoint.strided_reads import read_box

Keys = tuple[str | int, ...]


class CheckpointStorageReader(StorageReader):
    """Reads a checkpoint for torch.distributed.checkpoint.load().

    So::

        state = {"model": get_model_state_dict(model)}
        dcp.load(state, storage_reader=farandole.CheckpointStorageReader(path))

    It has what get_state_dict() of torch returns: tensors of a single model and optimizer are below
    the names that are given here, those of several below the names that save_checkpoint() got.
    Schedulers, scalers and samplers are below these words, and the program's own values below their
    own names. Each rank reads the parts of tensors that it asks for.

    Threads: one at a time.

    Args:
        path: The folder given to save_checkpoint(), of which the latest is read, or that of one
            checkpoint.
        model: The name in the dictionary that is loaded into.
        optimizer: Likewise.
        flatten_optimizer_state_dict: Whether it is that of StateDictOptions with this option.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: str = "model",
        optimizer: str = "optimizer",
        flatten_optimizer_state_dict: bool = False,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._flattens = flatten_optimizer_state_dict
        self._open(os.fspath(path))

    def _open(self, path: str) -> None:
        self._reader = _C.CheckpointReader(path)
        self._entries = self._reader.entries
        self._stored: dict[str, str] = {}  # by torch's key: ours, of a tensor
        self._values: dict[str, Any] = {}  # by torch's key: what is in the index
        self._paths: dict[str, Keys] = {}
        index = json.loads(self._reader.values)
        self._add_models(index)
        of_models = [prefix for prefix in index["models"] if prefix]
        for prefix, described in index["optimizers"].items():
            self._add_optimizer(prefix.rstrip(":") or self._optimizer, described, of_models)
        for name, state in index["states"].items():
            if not name.startswith("model/"):
                self._add((name,), tree.decode(state, _Stored))
        for name, value in tree.decode(index["values"], _Stored).items():
            self._add((str(name),), value)

    def _add_models(self, index: Mapping[str, Any]) -> None:
        for prefix, names in index["models"].items():
            top = prefix.rstrip(".") or self._model
            for name in names:
                made = index["states"].get(f"model/{prefix}{name}")
                key = index["aliases"].get(prefix + name, prefix + name)
                self._add((top, name), _Stored(key) if made is None else tree.decode(made, _Stored))

    def _add_optimizer(self, top: str, described: Mapping[str, Any], of_models: list[str]) -> None:
        for name, state in described["states"].items():
            of = _without(name, of_models)
            for key, value in tree.decode(state, _Stored).items():
                flat = (f"state.{of}.{key}",)
                self._add((top, *(flat if self._flattens else ("state", of, key))), value)
        for number, group in enumerate(described["groups"]):
            values = tree.decode(group["hyperparameters"], _Stored)
            names = [_without(name, of_models) for name in group["params"]]
            values["param_names"] = names  # of optimizers that were made with names
            if self._flattens:
                for key, value in values.items():
                    for name in names:
                        self._add_leaf((top, f"param_groups.{name}.{key}"), value)
            else:
                for key, value in {"params": names, **values}.items():
                    self._add_leaf((top, "param_groups", number, key), value)

    def _add(self, path: Keys, value: Any) -> None:
        """A value, or all that is in it where torch's planners look into containers."""
        if isinstance(value, dict):
            for key, each in value.items():
                self._add((*path, str(key)), each)
        elif isinstance(value, list) and any(map(_is_looked_into, value)):
            for number, each in enumerate(value):
                self._add((*path, number), each)
        else:
            self._add_leaf(path, value)

    def _add_leaf(self, path: Keys, value: Any) -> None:
        key = ".".join(map(str, path))
        self._paths[key] = path
        if isinstance(value, _Stored):
            self._stored[key] = value.key
        else:
            self._values[key] = value

    # The interface of torch.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Open another checkpoint, if one is given to load()."""
        if checkpoint_id is not None:
            self._open(os.fspath(checkpoint_id))

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """All that there is, each tensor as one chunk."""
        described: dict[str, Any] = {}
        for key in self._paths:
            described[key] = BytesStorageMetadata()
            shape_and_dtype = self._shape_and_dtype(key)
            if shape_and_dtype is not None:
                shape, dtype = shape_and_dtype
                chunk = ChunkStorageMetadata(torch.Size([0 for _ in shape]), torch.Size(shape))
                described[key] = TensorStorageMetadata(
                    TensorProperties(dtype=dtype), torch.Size(shape), [chunk]
                )
        return Metadata(described, planner_data=dict(self._paths), storage_data={})

    def _shape_and_dtype(self, key: str) -> tuple[list[int], torch.dtype] | None:
        if key in self._stored:
            entry = self._entries[self._stored[key]]
            return list(entry.shape), entry.dtype
        value = self._values[key]
        return (list(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any
    ) -> None:
        """Without effect: each rank has its own reader."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The same."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The same."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank asks for, and compare it with its checksums."""
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._pickled(item.storage_index))
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(self._part(item))
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _pickled(self, index: MetadataIndex) -> io.BytesIO:
        """As torch's planners take a value, which is not pickled in the checkpoint."""
        data = io.BytesIO()
        torch.save(self._with_tensors(self._values[index.fqn]), data)
        data.seek(0)
        return data

    def _with_tensors(self, value: Any) -> Any:
        """The same with what is in the checkpoint: in tuples, into which planners do not look."""
        if isinstance(value, _Stored):
            return self._reader.read_whole(value.key)
        if isinstance(value, dict):
            return {key: self._with_tensors(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._with_tensors, value))
        return value

    def _part(self, item: ReadItem) -> torch.Tensor:
        key = item.storage_index.fqn
        offsets, sizes = list(item.storage_offsets), list(item.lengths)
        if key not in self._stored:
            part: torch.Tensor = self._values[key]
            for dimension, (begin, size) in enumerate(zip(offsets, sizes, strict=True)):
                part = part.narrow(dimension, begin, size)
            return part
        return read_box(self._reader, self._stored[key], offsets, sizes)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint of save_checkpoint() is there."""
        try:
            _C.CheckpointReader(os.fspath(checkpoint_id))
        except Exception:  # what load() asks is whether, not why
            return False
        return True


class _Stored:
    """In place of a tensor of the checkpoint."""

    def __init__(self, key: str) -> None:
        self.key = key


def _is_looked_into(value: Any) -> bool:
    return isinstance(value, dict | torch.Tensor | _Stored) or (
        isinstance(value, list) and any(map(_is_looked_into, value))
    )


def _without(name: str, prefixes: list[str]) -> str:
    """The name of a parameter in its own model."""
    return next((name.removeprefix(each) for each in prefixes if name.startswith(each)), name)
