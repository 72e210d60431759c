# SPDX-License-Identifier: Apache-2.0
"""Gradients outside the buckets, averaged at once when one certain gradient has come."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _broadcast_coalesced

_MESSAGE_BYTES = 250 * 1024 * 1024


class DelayedReduction:
    """Averages the gradients of some parameters when that of ``trigger`` has been computed.

    The gradients lie in one buffer for each dtype and device, which is sent in one message.
    """

    def __init__(
        self, parameters: Sequence[Tensor], trigger: Tensor, group: dist.ProcessGroup
    ) -> None:
        """Send rank 0's values to all. Collective."""
        self.synchronize = True
        self.passes = 0  # backward passes so far
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._group = group
        _broadcast_coalesced(group, [p.detach() for p in parameters], _MESSAGE_BYTES, 0)
        self._buffers: list[Tensor] = []
        self._places: dict[int, Tensor] = {}
        kinds = {(p.dtype, p.device) for p in self._parameters}
        for dtype, device in sorted(kinds, key=str):
            self._make_buffer(dtype, device)
        trigger.register_hook(self._reduce)  # type: ignore[no-untyped-call]

    def _make_buffer(self, dtype: torch.dtype, device: torch.device) -> None:
        members = [p for p in self._parameters if (p.dtype, p.device) == (dtype, device)]
        buffer = torch.zeros(sum(p.numel() for p in members), dtype=dtype, device=device)
        self._buffers.append(buffer)
        parts = torch.split(buffer, [p.numel() for p in members])
        for parameter, part in zip(members, parts, strict=True):
            self._places[id(parameter)] = part.view_as(parameter)

    def set_group(self, group: dist.ProcessGroup) -> None:
        """Go on with other ranks."""
        self._group = group

    def prepare(self) -> None:
        """Let gradients be added up in the buffers; those that are None begin at zero."""
        for parameter in self._parameters:
            if parameter.grad is None:
                place = self._places[id(parameter)]
                place.zero_()
                parameter.grad = place

    def _reduce(self, gradient: Tensor) -> None:
        del gradient
        self.passes += 1
        if not self.synchronize:
            return
        for buffer in self._buffers:
            buffer.div_(self._group.size())
            dist.all_reduce(buffer, group=self._group)
