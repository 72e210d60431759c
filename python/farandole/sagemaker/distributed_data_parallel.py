# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with the arguments of SMDDP's first version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farandole.ddp import DistributedDataParallel as OurDistributedDataParallel


class DistributedDataParallel(OurDistributedDataParallel):
    """farandole.DistributedDataParallel with SMDDP's order of arguments.

    There ``broadcast_buffers`` had to be False and ``process_group`` None; here they have torch's
    meaning. All other arguments of farandole.DistributedDataParallel are taken by their names.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        broadcast_buffers: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            module,
            device_ids,
            output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            **options,
        )
