# SPDX-License-Identifier: Apache-2.0
"""What a TorchState does with attributes of each type: models, optimizers, schedulers, samplers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from farandole.elastic.broadcasting import broadcast_object, broadcast_tensors
from farandole.elastic.sampler import ElasticSampler
from farandole.errors import NotSupported, sentences
from farandole.optim import ZeroRedundancyOptimizer


class StateHandler:
    """Base: keeps a copy of one attribute, and shares it. Register subclasses by their types."""

    saved: Any = None
    """What save() has kept, for those that can be pickled."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks what rank 0 has. Collective."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Take another value for the attribute, and keep a copy of it."""
        self.value = value
        self.save()

    def on_reset(self) -> None:
        """Fit the value to new ranks, before sync()."""


class _StateDictHandler(StateHandler):
    """Of what has state_dict() and load_state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self.saved))


class ModelStateHandler(_StateDictHandler):
    """Of a torch.nn.Module."""

    def sync(self) -> None:
        """Give all ranks the parameters and buffers of rank 0. Collective."""
        state = self.value.state_dict()
        broadcast_tensors(state[name] for name in sorted(state) if isinstance(state[name], Tensor))


class SharedDictHandler(_StateDictHandler):
    """Of what goes on with the state_dict() of rank 0: schedulers, scalers of gradients."""

    def sync(self) -> None:
        """Give all ranks the state of rank 0. Collective."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


class OptimizerStateHandler(SharedDictHandler):
    """Of a torch.optim.Optimizer.

    Raises:
        NotSupported: of a sharded one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            raise NotSupported(
                sentences(
                    "elastic-sharded",
                    "a TorchState got a ZeroRedundancyOptimizer.",
                    "each rank has a part of its state alone, which is lost with the rank.",
                    "use the optimizer that it shards, or torchrun --max-restarts with "
                    "farandole.save_checkpoint() and resume_or_start().",
                )
            )
        super().__init__(optimizer)


class SamplerStateHandler(SharedDictHandler):
    """Of an ElasticSampler; with the place of rank 0, what is left is divided anew."""

    def on_reset(self) -> None:
        """Divide what is left among the new ranks."""
        self.value.reset()


Registry: TypeAlias = list[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, SharedDictHandler),
    (GradScaler, SharedDictHandler),
]


def get_handler_registry() -> Registry:
    """Types and their handlers; the first that fits counts. It may be changed in place."""
    return _registry


def set_handler_registry(registry: Iterable[tuple[type, type[StateHandler]]]) -> None:
    """Replace it."""
    global _registry
    _registry = list(registry)


def handler_of(value: Any) -> StateHandler | None:
    """A new handler for a value; None: it is an object like any other."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
