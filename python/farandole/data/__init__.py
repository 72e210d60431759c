# SPDX-License-Identifier: Apache-2.0
"""Samplers that divide a dataset among ranks."""

from __future__ import annotations

from farandole.data.distributed_bucket_batch_sampler import DistributedBucketBatchSampler
from farandole.data.distributed_sampler import DistributedSampler
from farandole.data.distributed_weighted_random_sampler import DistributedWeightedRandomSampler

__all__ = [
    "DistributedBucketBatchSampler",
    "DistributedSampler",
    "DistributedWeightedRandomSampler",
]
