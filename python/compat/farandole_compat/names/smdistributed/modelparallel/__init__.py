# SPDX-License-Identifier: Apache-2.0
"""Not offered: Farandole trains whole models on every rank."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdistributed.modelparallel",
    "Farandole has no tensor or pipeline parallelism",
    "shard the optimizer's state by farandole.ZeroRedundancyOptimizer, or use "
    "torch.distributed.fsdp over a group of backend farandole",
)
