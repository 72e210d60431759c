# SPDX-License-Identifier: Apache-2.0
"""The state of a training with torch."""

from __future__ import annotations

from typing import Any

import torch

from farandole import distributed
from farandole.elastic.broadcasting import broadcast_object
from farandole.elastic.handlers import StateHandler, handler_of
from farandole.elastic.state import ObjectState


class TorchState(ObjectState):
    """Models, optimizers, samplers and other objects, which are its attributes.

    An attribute whose type has a handler (see handlers.py) is kept and shared by it, others as
    objects that are pickled.

    Args:
        model: A model, or None.
        optimizer: An optimizer, or None; not a sharded one.
        kwargs: More of them, and any other objects, by their names.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.update(model=model, optimizer=optimizer)
        found = {name: handler_of(value) for name, value in kwargs.items()}
        self._handlers = {name: each for name, each in found.items() if each is not None}
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        others = {name: value for name, value in kwargs.items() if name not in self._handlers}
        super().__init__(broadcast_object, distributed.rank, **others)

    def save(self) -> None:
        """Keep copies of all attributes."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to the copies."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give all ranks what rank 0 has, and keep it. Collective."""
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def reset(self) -> None:
        """Fit what depends on the ranks to the new ones."""
        for handler in self._handlers.values():
            handler.on_reset()

    def _kept(self) -> Any:
        """None if a handler of the program's own has no copy."""
        copies = {name: handler.saved for name, handler in self._handlers.items()}
        return None if None in copies.values() else (copies, super()._kept())

    def _take_kept(self, kept: Any) -> None:
        copies, others = kept
        for name, handler in self._handlers.items():
            handler.saved = copies[name]
            handler.restore()
        super()._take_kept(others)

    def __setattr__(self, name: str, value: Any) -> None:
        """A new value of an attribute with a handler is kept at once."""
        if name in self.__dict__.get("_handlers", {}) and hasattr(self, name):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
