# SPDX-License-Identifier: Apache-2.0
"""A tensor of an optimizer's state, of which each rank has some elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from farandole import _C
from farandole.errors import InvalidArgument, sentences
from farandole.optim.boxes import Box, boxes_of

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem
    from typing_extensions import Self

Piece = tuple[int, torch.Tensor]
"""The first element, in the order of memory, and the elements in one dimension."""

_aten = torch.ops.aten


class ShardedState(torch.Tensor):
    """What torch.distributed.checkpoint saves and loads without putting the whole together.

    It has the shape of the whole. Its pieces are views of what the next step changes, so that what
    loads into it loads into the optimizer. Nothing can be computed with it:
    consolidate_state_dict() and StateDictOptions(full_state_dict=True) give whole tensors.
    """

    pieces: list[Piece]

    @staticmethod
    def __new__(
        cls,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        pieces: Sequence[Piece],
    ) -> Self:
        """Of pieces in the order of ``strides``, which have no gaps."""
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), strides=tuple(strides), dtype=dtype, device=device
        )
        made.pieces = list(pieces)
        return made

    def __init__(self, *_: Any) -> None:
        """All is done by __new__()."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Which elements are here."""
        here = ", ".join(f"{begin} to {begin + part.numel()}" for begin, part in self.pieces)
        return f"ShardedState(shape={tuple(self.shape)}, dtype={self.dtype}, elements={here or 0})"

    def part(self, piece: _C.Piece) -> torch.Tensor:
        """The elements of a piece of this rank.

        Raises:
            InvalidArgument: they are not here.
        """
        for begin, part in self.pieces:
            offset = piece.offset - begin
            if offset >= 0 and offset + piece.elements <= part.numel():
                return part[offset : offset + piece.elements]
        raise self._elsewhere(piece.offset, piece.offset + piece.elements)

    def whole(self) -> torch.Tensor:
        """All elements, on the rank that has all of them.

        Raises:
            InvalidArgument: they are not here.
        """
        if len(self.pieces) != 1 or self.pieces[0][1].numel() != self.numel():
            raise self._elsewhere(0, self.numel())
        return self.pieces[0][1].view(self.shape)

    def _elsewhere(self, begin: int, end: int) -> InvalidArgument:
        return InvalidArgument(
            sentences(
                "sharded-state-elsewhere",
                f"load_state_dict() got {self!r} without the elements {begin} to {end}.",
                "it was made when other ranks had them, as before rebuild() or in another job.",
                "call get_optimizer_state_dict() of this optimizer, load into that by "
                "torch.distributed.checkpoint, and pass it.",
            )
        )

    # What torch's planners ask.

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        """One for each box of this rank."""
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import (
            TensorWriteData,
            WriteItem,
            WriteItemType,
        )

        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=TensorProperties(dtype=self.dtype), size=self.size()
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """The boxes of this rank."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
            for box, _ in self._boxes()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """A view of the box that begins there."""
        for box, view in self._boxes():
            if torch.Size(box.offsets) == index.offset:
                return view
        raise InvalidArgument(
            sentences(
                "sharded-state-box",
                f"torch.distributed.checkpoint asked for elements of {self!r} at {index.offset}.",
                "no box of this rank begins there.",
                "pass what get_optimizer_state_dict() returned, unchanged.",
            )
        )

    def _boxes(self) -> list[tuple[Box, torch.Tensor]]:
        if self.numel() == 0:  # all ranks have it, and planners keep one
            empty = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            return [(Box((0,) * self.dim(), tuple(self.shape), 0, tuple(range(self.dim()))), empty)]
        return [
            (box, box.view(part, begin))
            for begin, part in self.pieces
            for box in boxes_of(self.shape, self.stride(), begin, begin + part.numel())
        ]

    # What works on it.

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ShardedState:
        """The same of other pieces."""
        like = change(torch.empty(0, dtype=self.dtype, device=self.device))
        pieces = [(begin, change(part)) for begin, part in self.pieces]
        return ShardedState(self.shape, self.stride(), like.dtype, like.device, pieces)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Copy and move the pieces; all else is refused."""
        first, options = args[0], dict(kwargs or {})
        if func in (_aten.detach.default, _aten.alias.default):
            return first._with(lambda part: part)
        if func in (_aten.clone.default, _aten._to_copy.default):
            options.pop("memory_format", None)
            return first._with(lambda part: func(part, **options))
        if func is _aten.new_empty.default and tuple(args[1]) == tuple(first.shape):
            like = torch.empty(0, dtype=first.dtype, device=first.device).new_empty(0, **options)
            return ShardedState(first.shape, first.stride(), like.dtype, like.device, [])
        raise InvalidArgument(
            sentences(
                "sharded-state-operation",
                f"{func} was called with a ShardedState.",
                "each rank has some elements of this tensor of an optimizer's state; it can be "
                "saved and loaded by torch.distributed.checkpoint, copied and moved.",
                "pass StateDictOptions(full_state_dict=True), or call consolidate_state_dict(), "
                "for whole tensors.",
            )
        )
