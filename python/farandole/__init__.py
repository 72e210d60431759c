# SPDX-License-Identifier: Apache-2.0
"""Fast data-parallel training on LibTorch.

``import farandole`` gives torch.distributed the backend "farandole"::

    import torch.distributed as dist, farandole
    dist.init_process_group("farandole")

and the rank and world-size API on plain tensors::

    farandole.init_process_group()
    farandole.all_reduce(tensor, op="avg")
"""

from __future__ import annotations

import torch

from farandole import _torch_version
from farandole._build import TORCH_VERSION

_torch_version.check(torch.__version__, TORCH_VERSION)  # before the C++ library is loaded

from farandole import c10d, logs  # noqa: E402
from farandole._C import version as __version__  # noqa: E402
from farandole.amp import GradScaler, autocast  # noqa: E402
from farandole.ddp import (  # noqa: E402
    BackwardTimes,
    BucketTimes,
    DistributedDataParallel,
    SyncBatchNorm,
)
from farandole.distributed import (  # noqa: E402
    abort,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    default_group,
    destroy,
    gather,
    init_process_group,
    is_initialized,
    local_rank,
    local_world_size,
    monitored_barrier,
    new_group,
    rank,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
    shrink_group,
    source_rank,
    symmetric_empty,
    world_size,
)
from farandole.errors import (  # noqa: E402
    AbortedError,
    BackwardError,
    CommError,
    Error,
    InvalidArgument,
    MismatchError,
    NotSupported,
    PeerFailure,
    StepError,
    SystemError,
    TimeoutError,
)
from farandole.optim import ZeroRedundancyOptimizer  # noqa: E402

__all__ = [
    "AbortedError",
    "BackwardError",
    "BackwardTimes",
    "BucketTimes",
    "CommError",
    "DistributedDataParallel",
    "Error",
    "GradScaler",
    "InvalidArgument",
    "MismatchError",
    "NotSupported",
    "PeerFailure",
    "StepError",
    "SyncBatchNorm",
    "SystemError",
    "TimeoutError",
    "ZeroRedundancyOptimizer",
    "__version__",
    "abort",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "autocast",
    "barrier",
    "broadcast",
    "default_group",
    "destroy",
    "gather",
    "init_process_group",
    "is_initialized",
    "local_rank",
    "local_world_size",
    "monitored_barrier",
    "new_group",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "shrink_group",
    "source_rank",
    "symmetric_empty",
    "world_size",
]

logs.set_up()
c10d.register()
