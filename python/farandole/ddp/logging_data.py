# SPDX-License-Identifier: Apache-2.0
"""The dictionary of _get_ddp_logging_data(), by torch's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from farandole.ddp.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from farandole.ddp.distributed_data_parallel import DistributedDataParallel


def logging_data(ddp: DistributedDataParallel) -> dict[str, str | int]:
    """How a module was wrapped, its buckets, and the times of the last backward in ns."""
    return {**_construction(ddp), **_last_backward(ddp)}


def _construction(ddp: DistributedDataParallel) -> dict[str, str | int]:
    trained = [p for p in ddp._module_parameters if p.requires_grad]
    norms = (SyncBatchNorm, nn.SyncBatchNorm)
    return {
        "world_size": ddp.process_group.size(),
        "rank": ddp.process_group.rank(),
        "module_name": type(ddp.module).__name__,
        "device_ids": ", ".join(map(str, ddp.device_ids or [])),
        "output_device": -1 if ddp.output_device is None else ddp.output_device,
        "backend_name": ddp.process_group.name(),
        "broadcast_buffers": int(ddp.broadcast_buffers),
        "bucket_cap_bytes": ddp.bucket_bytes_cap,
        "find_unused_parameters": int(ddp.find_unused_parameters),
        "gradient_as_bucket_view": 1,
        "static_graph": int(ddp.static_graph),
        "has_sync_bn": int(any(isinstance(layer, norms) for layer in ddp.module.modules())),
        "join_uneven_inputs": int(ddp._join_config.enable),
        "comm_hook": ddp._comm_hook_name,
        "dtypes": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in trained})),
        "is_multi_device_module": int(ddp.is_multi_device_module),
        "num_parameter_tensors": len(trained),
        "total_parameter_size_bytes": sum(p.numel() * p.element_size() for p in trained),
    }


def _last_backward(ddp: DistributedDataParallel) -> dict[str, str | int]:
    replica = ddp._replica
    if replica is None:
        return {"iteration": 0, "has_rebuilt_buckets": 0}
    stats = replica.stats()
    buckets = replica.plan().buckets
    data: dict[str, str | int] = {
        "iteration": stats.backward,
        "has_rebuilt_buckets": int(bool(buckets)),
        "num_buckets_reduced": len(stats.buckets),
        "rebuilt_bucket_sizes": ", ".join(str(bucket.bytes) for bucket in buckets),
        "rebuilt_per_bucket_param_indices": "; ".join(
            " ".join(str(slot.parameter) for slot in bucket.slots) for bucket in buckets
        ),
    }
    if stats.backward == 0:
        return data
    return data | {
        "backward_compute_time": stats.end_ns - stats.begin_ns,
        "backward_compute_time_start": stats.begin_ns,
        "backward_compute_time_end": stats.end_ns,
        "backward_comm_time": stats.finish_ns - min(b.ready_ns for b in stats.buckets)
        if stats.buckets
        else 0,
        "backward_compute_comm_overlap_time": max(
            0, stats.end_ns - min((b.ready_ns for b in stats.buckets), default=stats.end_ns)
        ),
        "backward_comm_time_end": stats.finish_ns,
    }
