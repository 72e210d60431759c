# SPDX-License-Identifier: Apache-2.0
"""A folder that torch.distributed.checkpoint.save() has written."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.serialization import safe_globals

from farandole.checkpoint.dcp_metadata import read_metadata
from farandole.checkpoint.numpy_scalars import plain_numpy_classes
from farandole.errors import CheckpointError, sentences
from farandole.optim.boxes import Box, boxes_of, contiguous_strides
from farandole.regular_file import open_regular_file

Keys = tuple[str | int, ...]


class DcpFolder:
    """Its tensors, of which chunks are read when they are needed, and its other objects.

    Threads: one at a time.
    """

    def __init__(self, folder: str) -> None:
        """Read the metadata."""
        self.folder = folder
        metadata = read_metadata(Path(folder))
        described = metadata.state_dict_metadata
        self.tensors: dict[str, TensorStorageMetadata] = {
            key: each for key, each in described.items() if isinstance(each, TensorStorageMetadata)
        }
        self.objects = {key for key in described if key not in self.tensors}
        self._storage: dict[MetadataIndex, Any] = metadata.storage_data
        self._paths = _paths_of(metadata.planner_data)

    @property
    def keys(self) -> list[str]:
        """Of all that it has, with dots between the names of nested dictionaries."""
        return [*self.tensors, *sorted(self.objects)]

    def path(self, key: str) -> Keys:
        """The keys of the nested dictionaries."""
        return self._paths.get(key) or tuple(key.split("."))

    def top_level_names(self) -> str:
        """As messages list them."""
        names = dict.fromkeys(str(self.path(key)[0]) for key in self.keys)
        return ", ".join(repr(name) for name in names) or "none"

    def value(self, key: str) -> Any:
        """An object that is no tensor, or a small tensor.

        Raises:
            CheckpointError: it is damaged, or of a class whose code loading would run.
        """
        if key in self.tensors:
            size = self.tensors[key].size
            whole = torch.empty(size, dtype=self.tensors[key].properties.dtype)
            boxes = boxes_of(size, contiguous_strides(size), 0, whole.numel())
            self.copy(key, boxes, [whole for _ in boxes])
            return whole
        try:
            with safe_globals(plain_numpy_classes()):
                return self._load(MetadataIndex(key), key)
        except CheckpointError:
            raise
        except Exception as met:
            raise CheckpointError(
                sentences(
                    "checkpoint-dcp-value",
                    f"'{key}' of the checkpoint at '{self.folder}' could not be read.",
                    f"{type(met).__qualname__}: {_first_line(met)}; it is pickled, and read with "
                    "weights_only=True, so that loading runs no code.",
                    "read it by torch.distributed.checkpoint, and save it with save_checkpoint().",
                )
            ) from met

    def copy(self, key: str, boxes: Sequence[Box], into: Sequence[torch.Tensor]) -> None:
        """Read boxes of a tensor into tensors of their shapes, one chunk in memory at a time.

        Raises:
            CheckpointError: a file is missing or damaged, or its chunks have gaps.
        """
        copied = 0
        for chunk in self.tensors[key].chunks:
            met = [_intersection(box, chunk.offsets, chunk.sizes) for box in boxes]
            if all(common is None for common in met):
                continue
            data = self._chunk(key, chunk.offsets, chunk.sizes)
            for box, to, common in zip(boxes, into, met, strict=True):
                if common is not None:
                    part = _narrowed(data, common, chunk.offsets)
                    _narrowed(to, common, box.offsets).copy_(part)
                    copied += math.prod(size for _, size in common)
        needed = sum(box.elements for box in boxes)
        if copied != needed:
            raise self.damaged(key, f"its chunks have {copied} of {needed} elements")

    def are_equal(self, key: str, other: str) -> bool:
        """Whether two tensors have the same bits; one chunk of each in memory at a time.

        Raises:
            CheckpointError: as copy().
        """
        one, two = self.tensors[key], self.tensors[other]
        if (one.size, one.properties.dtype) != (two.size, two.properties.dtype):
            return False
        for chunk in one.chunks:
            data = self._chunk(key, chunk.offsets, chunk.sizes)
            there = torch.empty_like(data, memory_format=torch.contiguous_format)
            order = tuple(range(data.dim()))
            self.copy(other, [Box(tuple(chunk.offsets), tuple(chunk.sizes), 0, order)], [there])
            if not torch.equal(_bits(data), _bits(there)):
                return False
        return True

    def _chunk(self, key: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        try:
            data = self._load(MetadataIndex(key, offsets), key)
        except CheckpointError:
            raise
        except Exception as met:  # what torch.load() raises of a damaged file
            raise self.damaged(key, f"{type(met).__qualname__}: {_first_line(met)}") from met
        dtype = self.tensors[key].properties.dtype
        if not isinstance(data, torch.Tensor) or data.dtype != dtype or data.shape != tuple(sizes):
            raise self.damaged(key, f"a chunk at {tuple(offsets)} is another one")
        return data

    def _load(self, index: MetadataIndex, key: str) -> Any:
        info = self._storage.get(index)
        if info is None:
            raise self.damaged(key, "the metadata does not say where it is")
        relative = PurePosixPath(info.relative_path)
        if relative.is_absolute() or ".." in relative.parts:
            raise self.damaged(key, f"it is said to be in '{relative}', outside of the folder")
        if getattr(info, "transform_descriptors", None):
            raise self.damaged(key, f"it is stored as {list(info.transform_descriptors)}")
        with open_regular_file(Path(self.folder, relative)) as file:
            part = _FilePart(file, info.offset, info.length)
            return torch.load(part, map_location="cpu", weights_only=True)  # type: ignore[arg-type]

    def damaged(self, key: str, why: str) -> CheckpointError:
        """To be raised of what is under a key."""
        return CheckpointError(
            sentences(
                "checkpoint-dcp-damaged",
                f"'{key}' of the checkpoint at '{self.folder}' could not be read.",
                f"{why}.",
                "load another checkpoint, or restore this one from a copy; compressed ones are to "
                "be read by torch.distributed.checkpoint.",
            )
        )


class _FilePart(io.RawIOBase):
    """Some bytes of a file as a file."""

    def __init__(self, file: BinaryIO, offset: int, length: int) -> None:
        super().__init__()
        self._file = file
        self._offset = offset
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at += offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(self._length - self._at, 0))
        self._file.seek(self._offset + self._at)
        got = self._file.readinto(view[:wanted])  # type: ignore[attr-defined]
        self._at += got
        return int(got)


Common = list[tuple[int, int]]
"""Of each dimension: where in the whole tensor, and how many."""


def _intersection(box: Box, offsets: Sequence[int], sizes: Sequence[int]) -> Common | None:
    common = []
    for a, n, b, m in zip(box.offsets, box.sizes, offsets, sizes, strict=True):
        begin, end = max(a, b), min(a + n, b + m)
        if begin >= end:
            return None
        common.append((begin, end - begin))
    return common


def _narrowed(tensor: torch.Tensor, common: Common, origin: Sequence[int]) -> torch.Tensor:
    for dimension, ((begin, size), first) in enumerate(zip(common, origin, strict=True)):
        tensor = tensor.narrow(dimension, begin - first, size)
    return tensor


def _paths_of(planner_data: object) -> dict[str, Keys]:
    """The keys of nested dictionaries and lists, of torch's own planner."""
    items = planner_data.items() if isinstance(planner_data, dict) else ()
    return {
        key: path
        for key, path in items
        if isinstance(path, tuple) and ".".join(map(str, path)) == key and path
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Of which those of a NaN are equal to themselves."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _first_line(met: Exception) -> str:
    return str(met).partition("\n")[0].rstrip(".")
