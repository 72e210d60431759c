# SPDX-License-Identifier: Apache-2.0
"""What each rank writes of tensors that all ranks have, or that one has."""

from __future__ import annotations

import hashlib

import torch

from farandole import _C
from farandole.errors import InvalidArgument, sentences

_CUT_FROM = 1 << 16
"""Elements from which on a tensor that all ranks have is written by all of them."""


def check_tensor(key: str, tensor: torch.Tensor) -> None:
    """Raise InvalidArgument unless a tensor has elements, all of them and here."""
    kind, fix = "", ""
    if torch.nn.parameter.is_lazy(tensor):
        kind, fix = "has no shape yet", "run a forward first, which makes it."
    elif tensor.device.type == "meta":
        kind, fix = "is on the meta device", "move it to memory first: to_empty(device=...)."
    elif tensor.layout != torch.strided:
        kind, fix = "is sparse", "make it dense first: to_dense()."
    elif tensor.is_quantized:
        kind, fix = "is quantized", "save what int_repr() and the scales are."
    elif hasattr(tensor, "device_mesh"):
        kind, fix = "is a DTensor", "use torch.distributed.checkpoint for it."
    if kind:
        raise InvalidArgument(
            sentences(
                "checkpoint-tensor",
                f"a checkpoint got '{key}', which {kind}.",
                "it has tensors of which all elements are in the memory of their rank.",
                fix,
            )
        )


def check_apart(key: str, tensor: torch.Tensor) -> None:
    """Raise InvalidArgument if elements share memory."""
    overlaps = any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    if overlaps:
        raise InvalidArgument(
            sentences(
                "checkpoint-overlapping",
                f"the checkpoint got '{key}', elements of which share memory.",
                "it was made by expand(); nothing could be loaded into it.",
                "clone() it where the module registers it.",
            )
        )


def flat(tensor: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The elements in the order of memory, without a copy if they lie close, and the strides."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor.view(-1), list(tensor.stride())
    if not _is_dense(tensor):
        tensor = tensor.contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)), list(tensor.stride())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return tensor.is_contiguous()
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


class Slices:
    """The slices of this rank."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.own: list[_C.TensorSlice] = []
        self.rank = rank
        self._world_size = world_size
        self._next = 0  # who writes the next small tensor that all have
        self._shared = hashlib.sha256()
        self._keys: set[str] = set()  # of all ranks

    def add_shared(self, key: str, tensor: torch.Tensor) -> None:
        """Of a tensor that is the same on all ranks, which all of them add."""
        elements, strides = flat(tensor)
        self._keys.add(key)
        self._shared.update(f"{key} {tuple(tensor.shape)} {strides} {tensor.dtype}\n".encode())
        if elements.numel() < _CUT_FROM:
            is_mine = self._next == self.rank
            self._next = (self._next + 1) % self._world_size
            begin, end = 0, elements.numel() if is_mine else 0
            if not is_mine:
                return
        else:
            begin, end = (
                elements.numel() * each // self._world_size for each in (self.rank, self.rank + 1)
            )
        self._add(key, list(tensor.shape), strides, begin, elements[begin:end])

    def new_key(self, wanted: str) -> str:
        """One that no other tensor has, the same on all ranks."""
        key, number = wanted, 1
        while key in self._keys:
            number += 1
            key = f"{wanted}#{number}"
        self._keys.add(key)
        return key

    def digest(self) -> str:
        """Of what all ranks must have alike but for the values."""
        return self._shared.hexdigest()

    def add_own(self, key: str, tensor: torch.Tensor) -> None:
        """A whole tensor that this rank alone writes."""
        elements, strides = flat(tensor)
        self._add(key, list(tensor.shape), strides, 0, elements)

    def add_part(self, key: str, parameter: torch.Tensor, offset: int, part: torch.Tensor) -> None:
        """Some elements of what has the shape of a parameter, in the order of its memory."""
        strides = _strides_of_slot(parameter)
        self._add(key, list(parameter.shape), strides, offset, part.detach().reshape(-1))

    def _add(
        self, key: str, shape: list[int], strides: list[int], offset: int, part: torch.Tensor
    ) -> None:
        self.own.append(_C.TensorSlice(key, shape, strides, offset, part))


def _strides_of_slot(parameter: torch.Tensor) -> list[int]:
    """Those in which pieces of a parameter count its elements: its own, without gaps."""
    return list(parameter.stride()) if parameter.is_contiguous() else flat(parameter)[1]
