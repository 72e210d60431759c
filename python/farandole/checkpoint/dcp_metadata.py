# SPDX-License-Identifier: Apache-2.0
"""The pickled .metadata file of torch.distributed.checkpoint, without running its code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from enum import Enum, EnumMeta
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from farandole.checkpoint.pickle_memo import check_memo
from farandole.errors import CheckpointError, sentences
from farandole.regular_file import open_regular_file

FILE = ".metadata"
"""Which a save writes last."""

_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed._shard.sharded_tensor.metadata": {
        "MEM_FORMAT_ENCODING",
        "TensorProperties",
    },  # of older versions
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
}
"""By module: the classes that torch's planner and file system write there."""

_PATHS = {
    (module, name)
    for module in ("pathlib", "pathlib._local")
    for name in ("Path", "PosixPath", "PurePosixPath")
}
"""Classes of the folder's own path, which is not needed."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PATHS:
            return _no_path
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # by which Python 3.11.0 to 3.11.3 write members of an Enum
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _no_path(*_parts: object) -> None:
    """Not joined: of parts that are paths a few bytes can make one as long as memory."""


def _member(enum: object, name: object) -> Enum:
    if isinstance(enum, EnumMeta) and isinstance(name, str) and name in enum.__members__:
        return cast(Enum, enum[name])
    shown = name if isinstance(name, str) else "that is no text"
    raise pickle.UnpicklingError(f"it asks for the attribute {shown}, which is no Enum's member")


def _said(key: object) -> str:
    """For an error. The text of nested objects can be longer than memory."""
    return repr(key) if isinstance(key, str) else f"a key that is a {type(key).__qualname__}"


def read_metadata(folder: Path) -> Metadata:
    """What torch.distributed.checkpoint.save() has written of its tensors.

    Raises:
        CheckpointError: it cannot be read, or has objects of other classes than torch's.
    """
    path = folder / FILE
    try:
        with open_regular_file(path) as file:
            data = file.read()
        check_memo(data)
        found = _Unpickler(io.BytesIO(data)).load()
    except Exception as met:  # a damaged pickle raises anything
        raise _unreadable(path, f"{type(met).__qualname__}: {met}") from met
    if not isinstance(found, Metadata) or not _has_dictionaries(found):
        raise _unreadable(path, "it has no Metadata of FileSystemWriter")
    for key, described in found.state_dict_metadata.items():
        if not (isinstance(key, str) and _is_description(described)):
            raise _unreadable(path, f"it has no description of {_said(key)}")
    for index, place in found.storage_data.items():
        if not (isinstance(index, MetadataIndex) and _is_place(place)):
            name = _said(getattr(index, "fqn", index))
            raise _unreadable(path, f"it does not say where {name} is")
    return found


def _has_dictionaries(found: Metadata) -> bool:
    """Unpickling gives objects that were never made by their constructors."""
    names = ("state_dict_metadata", "storage_data")
    return all(isinstance(getattr(found, name, None), dict) for name in names)


def _is_description(described: object) -> bool:
    if not isinstance(described, TensorStorageMetadata):
        return isinstance(described, BytesStorageMetadata)
    size, chunks = getattr(described, "size", None), getattr(described, "chunks", None)
    dtype = getattr(getattr(described, "properties", None), "dtype", None)
    if not (_are_counts(size) and isinstance(dtype, torch.dtype) and isinstance(chunks, list)):
        return False
    return all(_is_chunk_of(len(described.size), chunk) for chunk in chunks)


def _is_chunk_of(dimensions: int, chunk: object) -> bool:
    if not isinstance(chunk, ChunkStorageMetadata):
        return False
    both = (getattr(chunk, "offsets", None), getattr(chunk, "sizes", None))
    return all(_are_counts(each) and len(each) == dimensions for each in both)


def _is_place(place: object) -> bool:
    numbers = [getattr(place, name, None) for name in ("offset", "length")]
    return isinstance(getattr(place, "relative_path", None), str) and _are_counts(numbers)


def _are_counts(values: object) -> TypeGuard[Sequence[int]]:
    return isinstance(values, list | tuple) and all(
        type(value) is int and value >= 0 for value in values
    )


def _unreadable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        sentences(
            "checkpoint-dcp-metadata",
            f"'{path}' could not be read.",
            f"{why}; of this pickled file only what torch.distributed.checkpoint itself writes is "
            "taken, so that loading runs no code.",
            "load another checkpoint, or read this one by torch.distributed.checkpoint and save it "
            "with save_checkpoint().",
        )
    )
