# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: gradients are averaged while backward runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup

from farandole import _C
from farandole.distributed import default_group

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(nn.Module):
    """Average the gradients of ``module`` over the ranks of a group while backward runs."""

    def __init__(self, module: nn.Module, *, process_group: ProcessGroup | None = None) -> None:
        """Compare the modules of all ranks and send rank 0's state to all. Collective."""
        super().__init__()
        self.module = module
        self._replica = _C.Replica(
            list(module.named_parameters()),
            list(module.named_buffers()),
            process_group or default_group(),
            _C.ReplicaOptions(),
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        self._replica.before_forward()
        try:
            output = self.module(*inputs, **kwargs)
        except BaseException:
            self._replica.forward_failed()
            raise
        self._replica.after_forward([output] if isinstance(output, torch.Tensor) else list(output))
        return output
