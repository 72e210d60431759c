# SPDX-License-Identifier: Apache-2.0
"""farandole.elastic's state and handlers, by Horovod's names."""

from __future__ import annotations

from farandole import elastic
from farandole.elastic import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)

from horovod.common.exceptions import as_horovod

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(elastic.TorchState):
    """farandole.elastic's, with Horovod's errors."""

    def sync(self) -> None:
        """Give all ranks what rank 0 has, and keep it. Collective."""
        with as_horovod():
            super().sync()

    def check_host_updates(self) -> None:
        """Look whether there are places for more ranks, or less. Collective."""
        with as_horovod():
            super().check_host_updates()
