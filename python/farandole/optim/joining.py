# SPDX-License-Identifier: Apache-2.0
"""What a rank without inputs does in the steps of the others, in torch's Join protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from farandole.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer


class JoinedRank(JoinHook):
    """Updates its shards in each step of the others."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        """Take the optimizer whose steps are to be taken."""
        super().__init__()
        self._optimizer = optimizer

    def main_hook(self) -> None:
        """Do what the others do with one batch: leave out the step of a backward that failed."""
        if self._optimizer._engine.join_failed:
            return
        if self._optimizer.gradients == "shard":
            self._optimizer.zero_grad(set_to_none=False)  # they are of an old batch of this rank
        self._optimizer._update_shards()

    def post_hook(self, is_last_joiner: bool) -> None:  # noqa: ARG002
        """Return when the parameters of the last step are here."""
        self._optimizer.wait()
