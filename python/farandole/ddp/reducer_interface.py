# SPDX-License-Identifier: Apache-2.0
"""The part of torch's Reducer that frameworks call on a wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from farandole.ddp.distributed_data_parallel import DistributedDataParallel


class ReducerInterface:
    """What Lightning calls in manual optimization: forward is local, the loss says when to send."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """Stand for the reducer of ``ddp``."""
        self._ddp = ddp

    def _rebuild_buckets(self) -> bool:
        """Nothing: buckets are made once."""
        return False

    def prepare_for_forward(self) -> None:
        """Nothing: forward does it."""

    def prepare_for_backward(self, tensors: Sequence[Tensor]) -> None:
        """Synchronize the backward from ``tensors``, whatever their forward was."""
        replica = self._ddp._replica_of_now()
        if replica is None:
            return
        before = replica.synchronize
        replica.synchronize = True
        replica.after_forward(list(tensors))
        replica.synchronize = before
