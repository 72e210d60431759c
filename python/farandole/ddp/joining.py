# SPDX-License-Identifier: Apache-2.0
"""What a rank without inputs does while the others go on, in torch's Join protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, JoinHook

if TYPE_CHECKING:
    from types import TracebackType

    from farandole.ddp.distributed_data_parallel import DistributedDataParallel


class UnevenInputs(Join):
    """torch's Join around one model: a rank also joins if its last backward was left."""

    def __init__(self, ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        """Take Join's arguments."""
        super().__init__([ddp], *args, **kwargs)
        self._ddp = ddp

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Tell peers that wait in that backward, then take part in theirs."""
        if exception_type is None:
            self._ddp._end_abandoned()
        super().__exit__(exception_type, exception, traceback)


class JoinedRank(JoinHook):
    """Takes part in each forward and backward of the others, with nothing to add."""

    def __init__(self, ddp: DistributedDataParallel, divide_by_initial_world_size: bool) -> None:
        """Say how gradients are divided: by all ranks, or by those that still have inputs."""
        super().__init__()
        self._ddp = ddp
        self._divides_by_all = divide_by_initial_world_size

    def main_hook(self) -> None:
        """Do what the others do with one batch."""
        ddp = self._ddp
        if ddp._syncs_buffers(after_forward=False):
            ddp._sync_buffers(common_rank(ddp, False))
        synchronizes = tell_synchronization(ddp, False)
        ddp.require_forward_param_sync = synchronizes
        if synchronizes:
            ddp._join_backward(self._divides_by_all)

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the model of a rank that had inputs until the end."""
        ddp = self._ddp
        replica = ddp._replica_of_now()
        if replica is not None:
            replica.end_join()
            replica.broadcast(common_rank(ddp, is_last_joiner))


def common_rank(ddp: DistributedDataParallel, is_candidate: bool) -> int:
    """The highest rank that is a candidate. Collective."""
    own = dist.get_rank(ddp.process_group) if is_candidate else -1
    chosen = torch.tensor([own], device=ddp.device)
    dist.all_reduce(chosen, dist.ReduceOp.MAX, group=ddp.process_group)
    return int(chosen)


def tell_synchronization(ddp: DistributedDataParallel, synchronizes: bool) -> bool:
    """Whether any rank synchronizes the backward of this batch. Collective."""
    count = torch.tensor([float(synchronizes)], device=ddp.device)
    dist.all_reduce(count, group=ddp.process_group)
    return bool(count != 0)
