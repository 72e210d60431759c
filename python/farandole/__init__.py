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

import importlib
import importlib.util
import pkgutil
from typing import TYPE_CHECKING, Any

import torch

from farandole import _torch_version
from farandole._build import TORCH_VERSION

_torch_version.check(torch.__version__, TORCH_VERSION)  # before the C++ library is loaded

from farandole import c10d, logs  # noqa: E402
from farandole._C import version as __version__  # noqa: E402
from farandole.amp import GradScaler, autocast  # noqa: E402
from farandole.arguments import default_group  # noqa: E402
from farandole.collectives import (  # noqa: E402
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
    source_rank,
    symmetric_empty,
)
from farandole.data import (  # noqa: E402
    DistributedBucketBatchSampler,
    DistributedSampler,
    DistributedWeightedRandomSampler,
)
from farandole.ddp import (  # noqa: E402
    BackwardTimes,
    BucketTimes,
    DistributedDataParallel,
    SyncBatchNorm,
)
from farandole.distributed import (  # noqa: E402
    abort,
    destroy,
    init_process_group,
    is_initialized,
    is_launched,
    local_rank,
    local_world_size,
    new_group,
    rank,
    shrink_group,
    world_size,
)
from farandole.errors import (  # noqa: E402
    AbortedError,
    BackwardError,
    CheckpointError,
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
from farandole.torch_names import (  # noqa: E402
    GroupMember,
    P2POp,
    ProcessGroup,
    ReduceOp,
    Work,
    all_gather_into_tensor,
    all_gather_object,
    all_to_all_single,
    batch_isend_irecv,
    broadcast_object_list,
    destroy_process_group,
    gather_object,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    irecv,
    is_available,
    is_torchelastic_launched,
    isend,
    new_subgroups,
    new_subgroups_by_enumeration,
    recv_object_list,
    reduce_scatter_tensor,
    scatter_object_list,
    send_object_list,
)

if TYPE_CHECKING:
    from farandole import debugger, profiler
    from farandole import elastic as elastic  # reached, not exported to *
    from farandole import horovod as horovod
    from farandole import named as named
    from farandole import run as run
    from farandole import sagemaker as sagemaker
    from farandole import spark as spark
    from farandole.checkpoint import (
        CheckpointOnSignal,
        load_checkpoint,
        resume_or_start,
        save_checkpoint,
    )
    from farandole.checkpoint.storage_reader import CheckpointStorageReader

__all__ = [
    "AbortedError",
    "BackwardError",
    "BackwardTimes",
    "BucketTimes",
    "CheckpointError",
    "CheckpointOnSignal",
    "CheckpointStorageReader",
    "CommError",
    "DistributedBucketBatchSampler",
    "DistributedDataParallel",
    "DistributedSampler",
    "DistributedWeightedRandomSampler",
    "Error",
    "GradScaler",
    "GroupMember",
    "InvalidArgument",
    "MismatchError",
    "NotSupported",
    "P2POp",
    "PeerFailure",
    "ProcessGroup",
    "ReduceOp",
    "StepError",
    "SyncBatchNorm",
    "SystemError",
    "TimeoutError",
    "Work",
    "ZeroRedundancyOptimizer",
    "__version__",
    "abort",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "autocast",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "debugger",
    "default_group",
    "destroy",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "is_launched",
    "is_torchelastic_launched",
    "isend",
    "load_checkpoint",
    "local_rank",
    "local_world_size",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "profiler",
    "rank",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "resume_or_start",
    "save_checkpoint",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "shrink_group",
    "source_rank",
    "symmetric_empty",
    "world_size",
]

logs.set_up()
c10d.register()


_LATE = {
    "CheckpointOnSignal": "checkpoint",
    "CheckpointStorageReader": "checkpoint.storage_reader",
    "load_checkpoint": "checkpoint",
    "resume_or_start": "checkpoint",
    "save_checkpoint": "checkpoint",
}
"""Modules of what most programs need late: it takes a sixth of the time of the import."""


def __getattr__(name: str) -> Any:
    """A late name, or a module such as farandole.elastic, which is imported now."""
    if name in _LATE:
        return getattr(importlib.import_module(f"farandole.{_LATE[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"farandole.{name}") is not None:
        return importlib.import_module(f"farandole.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With the late names and modules, for completion."""
    modules = {module.name for module in pkgutil.iter_modules(__path__)}
    public = {name for name in modules if not name.startswith("_")}
    return sorted({*globals(), *__all__, *public})
