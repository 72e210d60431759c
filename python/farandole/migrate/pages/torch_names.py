# SPDX-License-Identifier: Apache-2.0
"""The table of docs/migrate.md: what scripts of torch.distributed may use instead."""

from __future__ import annotations

from farandole.migrate.rows import Replacement

ROWS = (
    Replacement(
        '`torch.distributed.init_process_group("gloo")`',
        ("torch.distributed.init_process_group",),
        "farandole.init_process_group",
        "finds the ranks of each launcher",
    ),
    Replacement(
        "`torch.nn.parallel.DistributedDataParallel`",
        (
            "torch.nn.parallel.DistributedDataParallel",
            "torch.nn.parallel.distributed.DistributedDataParallel",
        ),
        "farandole.DistributedDataParallel",
        "gradients are averaged in shared memory during the backward pass",
    ),
    Replacement(
        "`torch.distributed.optim.ZeroRedundancyOptimizer`",
        ("torch.distributed.optim*.ZeroRedundancyOptimizer",),
        "farandole.ZeroRedundancyOptimizer",
        "fused and sharded by elements",
    ),
)
