# SPDX-License-Identifier: Apache-2.0
"""What the attribute "state" of a ZeroRedundancyOptimizer shows."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from farandole.errors import NotSupported, sentences
from farandole.optim.fused_stepper import FusedStepper
from farandole.optim.inner_stepper import InnerStepper
from farandole.optim.parameter_groups import Group
from farandole.optim.state_dicts import State, States
from farandole.optim.torch_state_dict import READS_NAMES

ByParameter = defaultdict[torch.Tensor, State]


class ShownState:
    """The whole state on a rank that has got it, else what this rank has.

    Made when it is read, and kept until the next step, load or change of shards: see forget().
    """

    def __init__(self) -> None:
        """Of nothing."""
        self._whole: ByParameter | None = None  # consolidated, or for state_dict()
        self._own: ByParameter | None = None  # of this rank
        self._known: ByParameter | None = None  # of each parameter, by all ranks together
        self.is_consolidated = False

    def forget(self) -> None:
        """Show what there is from now on."""
        self._whole = self._own = self._known = None
        self.is_consolidated = False

    def consolidate(self, groups: Sequence[Group], states: States) -> None:
        """Show whole states."""
        self._whole = _by_parameter(groups, states)
        self.is_consolidated = True

    @contextlib.contextmanager
    def instead(self, groups: Sequence[Group], states: States) -> Iterator[None]:
        """Show other states for a while."""
        before = self._whole
        self._whole = _by_parameter(groups, states)
        try:
            yield
        finally:
            self._whole = before

    def read(
        self, stepper: FusedStepper | InnerStepper, groups: Sequence[Group], reader: str | None
    ) -> ByParameter:
        """The state, as the program or a function of torch called ``reader`` gets it.

        It has all parameters, so that it is not empty: torch would begin a step then. Local, but
        collective where torch asks what it consists of.
        """
        if reader == READS_NAMES:
            if self._known is None:
                self._known = _by_parameter(groups, known_by_all(stepper, groups))
            return self._known
        if self._whole is not None and reader is None:
            return self._whole
        if self._own is None:
            self._own = _by_parameter(groups, stepper.shown(groups), with_empty_ones=True)
        return self._own


def known_by_all(stepper: FusedStepper | InnerStepper, groups: Sequence[Group]) -> States:
    """The state of each parameter, with ShardedState for what is on some ranks. Collective.

    Raises:
        NotSupported: on all ranks, of a class whose first step makes the state.
    """
    states = stepper.sharded(groups)
    is_stepped = any(map(any, states)) or stepper.is_stepped(groups)
    if isinstance(stepper, InnerStepper) and not is_stepped:
        name = type(stepper.optimizer).__qualname__
        raise NotSupported(
            sentences(
                "torch-state-before-step",
                f"torch.distributed.checkpoint.state_dict asked for the state of a {name} that "
                "has not been stepped.",
                "optimizers other than SGD, Adam, AdamW, LAMB and LARS make it in the first "
                "step, and there is no hidden one.",
                "load it with load_checkpoint(), which reads folders of "
                "torch.distributed.checkpoint too, or pass whole tensors to load_state_dict().",
            )
        )
    return states


def _by_parameter(
    groups: Sequence[Group], states: States, with_empty_ones: bool = False
) -> ByParameter:
    """Those that have a state, or all."""
    found: ByParameter = defaultdict(dict)
    for group, of_group in zip(groups, states, strict=False):  # no states: another rank has them
        for parameter, state in zip(group["params"], of_group, strict=True):
            if state or with_empty_ones:
                found[parameter] = state
    return found
