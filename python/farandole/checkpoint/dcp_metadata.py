# SPDX-License-Identifier: Apache-2.0
"""The pickled .metadata file of torch.distributed.checkpoint, without running its code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as of_torch
from torch.distributed.checkpoint.metadata import Metadata

from farandole.errors import CheckpointError, sentences

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
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}
"""By module: the classes that torch's planner and file system write there."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_metadata(folder: Path) -> Metadata:
    """What torch.distributed.checkpoint.save() has written of its tensors.

    Raises:
        CheckpointError: it cannot be read, or has objects of other classes than torch's.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except Exception as met:  # a damaged pickle raises anything
        raise _unreadable(path, f"{type(met).__qualname__}: {met}") from met
    if not isinstance(found, of_torch.Metadata) or not isinstance(found.storage_data, dict):
        raise _unreadable(path, "it has no Metadata of FileSystemWriter")
    return found


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
