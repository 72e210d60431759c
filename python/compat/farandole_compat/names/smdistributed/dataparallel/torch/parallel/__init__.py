# SPDX-License-Identifier: Apache-2.0
"""Version 1: DistributedDataParallel."""

from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
