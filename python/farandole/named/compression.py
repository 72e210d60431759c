# SPDX-License-Identifier: Apache-2.0
"""How gradients are changed before they travel, and back."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Compressor(Protocol):
    """A pair of functions; a class with static methods is one."""

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """What travels, and what decompress() needs to know."""

    def decompress(self, tensor: Tensor, context: Any) -> Tensor:
        """What has travelled, as it was."""


class NoCompression:
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """The same."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        """The same."""
        del context
        return tensor


class HalfCompression:
    """Floating-point tensors travel as ``dtype``; sums are formed in float32 and rounded once."""

    dtype = torch.float16

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """A copy of that dtype."""
        return tensor.to(cls.dtype) if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, context: torch.dtype) -> Tensor:
        """A copy of the dtype that it had."""
        return tensor.to(context)


class BrainCompression(HalfCompression):
    """As bfloat16, which does not overflow."""

    dtype = torch.bfloat16
