# SPDX-License-Identifier: Apache-2.0
"""Version 1: DistributedDataParallel."""

from farandole.sagemaker.distributed_data_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
