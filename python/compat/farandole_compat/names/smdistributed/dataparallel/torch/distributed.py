# SPDX-License-Identifier: Apache-2.0
"""Version 1: ranks and collectives, by SMDDP's names."""

from farandole import (
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)
from farandole import is_launched as is_available
from farandole import local_rank as get_local_rank
from farandole.sagemaker.data_parallel import ReduceOp, all_to_all_single
from farandole.sagemaker.data_parallel import init_default_group as init_process_group

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]
