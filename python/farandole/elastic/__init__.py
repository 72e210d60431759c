# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when ranks are lost and when new ones come.

A function that trains is decorated with run(), and all that it changes is in a state::

    state = farandole.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @farandole.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            for batch in loader:
                ...  # a step
                state.commit()

When a rank is lost, the others go back to their last commit, form a group of those that are left,
and call the function again. When ranks come or go in order, nobody goes back. `farandole run` with
--min-ranks starts such ranks; under torchrun --max-restarts commits outlive the processes. See
docs/elastic.md.
"""

from farandole.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from farandole.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult
from farandole.elastic.run import run
from farandole.elastic.sampler import ElasticSampler
from farandole.elastic.state import ObjectState, State
from farandole.elastic.torch_state import TorchState

__all__ = [
    "ElasticSampler",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]
