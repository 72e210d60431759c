# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: gradients are averaged over the ranks while backward runs."""

from __future__ import annotations

from farandole.ddp.backward_times import BackwardTimes, BucketTimes
from farandole.ddp.distributed_data_parallel import DistributedDataParallel
from farandole.ddp.sync_batch_norm import SyncBatchNorm

__all__ = ["BackwardTimes", "BucketTimes", "DistributedDataParallel", "SyncBatchNorm"]
