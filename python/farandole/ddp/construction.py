# SPDX-License-Identifier: Apache-2.0
"""What torch's constructor takes, checked and put into Farandole's terms."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _get_device_index
from torch.nn.parameter import UninitializedParameter

from farandole import _C, arguments
from farandole.ddp.mixed_precision import MixedPrecision
from farandole.errors import InvalidArgument, sentences

NonfinitePolicy = Literal["off", "warn", "skip", "raise"]
POLICIES: dict[NonfinitePolicy, _C.NonfinitePolicy] = {
    "off": _C.NonfinitePolicy.OFF,
    "warn": _C.NonfinitePolicy.WARN,
    "skip": _C.NonfinitePolicy.SKIP,
    "raise": _C.NonfinitePolicy.RAISE,
}

NAME = "DistributedDataParallel"
_WITHOUT_EFFECT = {
    "check_reduction": "backward checks each reduction anyway",
    "gradient_as_bucket_view": "gradients always lie in the buckets",
    "batched_grad_copy": "gradients are moved into the buckets as they come",
    "lazy_bucket_allocation": "buckets are made at the end of the first backward anyway",
}


def warn_of_arguments_without_effect(**given: object) -> None:
    """Say once, for all arguments together, which have no effect and why."""
    reasons = [f"{name} ({_WITHOUT_EFFECT[name]})" for name, value in given.items() if value]
    if reasons:
        warnings.warn(
            f"arguments without effect on farandole.DistributedDataParallel: {'; '.join(reasons)}.",
            stacklevel=4,  # of who calls the class, whose __init__ is wrapped
        )


def choose_group(group: dist.ProcessGroup | None, mesh: Any) -> dist.ProcessGroup:
    """The group of the arguments, or the default one.

    Raises:
        InvalidArgument: there are two, none, or a mesh of several dimensions.
    """
    if mesh is None:
        return arguments.group_of(NAME, group)
    if group is not None:
        raise InvalidArgument(
            sentences(
                "group-and-mesh",
                "DistributedDataParallel got both process_group and device_mesh.",
                "each says which ranks are replicas.",
                "pass one of them.",
            )
        )
    if mesh.ndim != 1:
        raise InvalidArgument(
            sentences(
                "mesh-dimensions",
                f"DistributedDataParallel got a device mesh of {mesh.ndim} dimensions.",
                "only the ranks along one dimension are replicas of each other.",
                'pass one dimension of the mesh, as mesh["replicate"].',
            )
        )
    of_mesh: dist.ProcessGroup = mesh.get_group(mesh_dim=0)
    return of_mesh


def check_module(module: object) -> None:
    """Check what torch's function would meet as an AttributeError.

    Raises:
        InvalidArgument: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise arguments.wrong(NAME, "module", module, "a torch.nn.Module")


def check_caps(cap: object, caps: object) -> tuple[float | None, list[float]]:
    """``bucket_cap_mb`` and ``bucket_cap_mb_list`` as numbers.

    Raises:
        InvalidArgument: they are none.
    """
    if isinstance(caps, str) or (caps is not None and not isinstance(caps, Sequence)):
        raise arguments.wrong(NAME, "bucket_cap_mb_list", caps, "a list of numbers")
    listed = [arguments.float_of(NAME, "bucket_cap_mb_list", each) for each in caps or ()]
    return None if cap is None else arguments.float_of(NAME, "bucket_cap_mb", cap), listed


def check_wire(
    dtype: torch.dtype | str | None, mixed_precision: MixedPrecision | None
) -> torch.dtype | None:
    """What gradients travel as.

    Raises:
        InvalidArgument: it is no such type, or ``mixed_precision`` says so too.
    """
    if dtype is None:
        return None
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in (
        torch.bfloat16,
        torch.float16,
        torch.float32,
    ):
        raise InvalidArgument(
            sentences(
                "wire-dtype",
                f"DistributedDataParallel got the wire_dtype {dtype}.",
                "gradients are sent unchanged, as a half type, or as float32.",
                "pass bfloat16, float16, float32 or none.",
            )
        )
    if mixed_precision is not None and mixed_precision.reduce_dtype is not None:
        raise InvalidArgument(
            sentences(
                "wire-and-reduce-dtype",
                "DistributedDataParallel got both wire_dtype and a reduce_dtype of "
                "mixed_precision.",
                "each says in which dtype gradients are sent.",
                "pass one of them.",
            )
        )
    return found


def check_parameters(parameters: Sequence[nn.Parameter]) -> None:
    """Check that these can be averaged in buckets.

    Raises:
        InvalidArgument: some are DTensors or have no shape yet, or device types are mixed.
    """
    loaded = sys.modules.get("torch.distributed.tensor")  # slow to import
    if loaded and any(isinstance(parameter, loaded.DTensor) for parameter in parameters):
        raise InvalidArgument(
            sentences(
                "dtensor-module",
                "DistributedDataParallel got a module with parameters that are DTensors.",
                "a DTensor is sharded or replicated over a mesh already, and its local parts are "
                "not replicas.",
                "wrap the plain module before you distribute it, or use fully_shard() or "
                "replicate() of torch.distributed over a group of backend farandole.",
            )
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise InvalidArgument(
            sentences(
                "lazy-module",
                "DistributedDataParallel got a module with uninitialized parameters.",
                "lazy modules give them a shape in their first forward.",
                "run the module on one batch before you wrap it.",
            )
        )
    types = sorted({parameter.device.type for parameter in parameters})
    if len(types) > 1:
        raise InvalidArgument(
            sentences(
                "device-types",
                f"DistributedDataParallel got parameters on {' and '.join(types)}.",
                "all parameters must be on one type of device.",
                "move the module with .to() before you wrap it.",
            )
        )


def check_devices(
    device_ids: Sequence[Any] | None, output_device: Any, parameters: Sequence[nn.Parameter]
) -> tuple[list[int] | None, int | None]:
    """``device_ids`` and ``output_device`` as numbers; None and None for the CPU.

    Raises:
        InvalidArgument: several, or one for a module that is on the CPU or on several devices.
    """
    if device_ids is not None and len(device_ids) > 1:
        raise InvalidArgument(
            sentences(
                "several-device-ids",
                f"DistributedDataParallel got device_ids {list(device_ids)}.",
                "each process drives one replica on one device.",
                "start one process for each device, and pass None or one id.",
            )
        )
    devices = {parameter.device for parameter in parameters}
    if device_ids and len(devices) == 1 and next(iter(devices)).type != "cpu":
        output = device_ids[0] if output_device is None else output_device
        return [_get_device_index(device_ids[0], True)], _get_device_index(output, True)
    if device_ids or output_device is not None:
        raise InvalidArgument(
            sentences(
                "device-ids",
                f"DistributedDataParallel got device_ids {device_ids} and output_device "
                f"{output_device} for a module on {', '.join(sorted(map(str, devices)))}.",
                "they choose the accelerator for the inputs of a module that is on one "
                "accelerator.",
                "leave them out.",
            )
        )
    return None, None


def forward_sync(broadcast_buffers: bool | None, forward_sync_buffers: bool | None) -> bool:
    """Whether forward sends rank 0's buffers: torch has had two names for it."""
    if forward_sync_buffers is not None:
        return forward_sync_buffers
    return broadcast_buffers is not False


def check_policy(policy: NonfinitePolicy | None) -> NonfinitePolicy | None:
    """The same.

    Raises:
        InvalidArgument: there is no such policy.
    """
    if policy is None or policy in POLICIES:
        return policy
    raise InvalidArgument(
        sentences(
            "report-nonfinite",
            f"DistributedDataParallel got report_nonfinite={policy!r}.",
            "it says what happens when a gradient has an Inf or NaN.",
            f"pass one of {', '.join(POLICIES)}.",
        )
    )


def check_pair(delayed: object, trigger: torch.Tensor | None) -> None:
    """Check that delayed gradients come with the parameter that they wait for.

    Raises:
        InvalidArgument: one is missing.
    """
    if (delayed is None) != (trigger is None):
        raise InvalidArgument(
            sentences(
                "delayed-all-reduce",
                "DistributedDataParallel got one of delay_all_reduce_named_params and "
                "param_to_hook_all_reduce.",
                "the second tells when the gradients of the first are reduced.",
                "pass both, or none.",
            )
        )
