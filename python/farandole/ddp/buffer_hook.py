# SPDX-License-Identifier: Apache-2.0
"""A hook that brings buffers together in place of the broadcast from rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel.distributed import _BufferCommHookLocation as BufferCommHookLocation

__all__ = ["BufferCommHook", "BufferCommHookLocation", "BufferHook"]

Futures: TypeAlias = Sequence[torch.futures.Future[Any]]
BufferHook: TypeAlias = Callable[[Any, dict[str, Tensor]], Futures | None]


class BufferCommHook:
    """A user's hook, and the futures of it that are to be done when backward ends."""

    def __init__(self, state: object, hook: BufferHook, location: BufferCommHookLocation) -> None:
        """Keep a hook.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(hook):
            raise TypeError(f"hook must be callable, got {type(hook).__name__}")
        self.buffer_comm_hook_state = state
        self.buffer_comm_hook = hook
        self.buffer_comm_hook_location = location
        self._futures: list[torch.futures.Future[Any]] = []

    def run(self, buffers: dict[str, Tensor]) -> None:
        """Call the hook; what it returns is waited for before forward, or else after backward."""
        self._futures += self.buffer_comm_hook(self.buffer_comm_hook_state, buffers) or []
        if self.buffer_comm_hook_location == BufferCommHookLocation.PRE_FORWARD:
            self.wait()

    def wait(self) -> None:
        """Wait for all that the hook has started."""
        while self._futures:
            self._futures.pop().wait()

    def wait_after_backward(self, outputs: list[Tensor]) -> None:
        """Wait at the end of the backward from ``outputs``, or now if there will be none."""
        if not self._futures:
            return
        outputs = [output for output in outputs if output.requires_grad]
        for output in outputs:
            output.register_hook(self._queue_wait)  # type: ignore[no-untyped-call]
        if not outputs:
            self.wait()

    def _queue_wait(self, gradient: Tensor) -> None:
        del gradient
        engine: Any = Variable._execution_engine
        engine.queue_callback(self.wait)
