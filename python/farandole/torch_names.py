# SPDX-License-Identifier: Apache-2.0
"""The names that torch.distributed has for what Farandole has too, and what it alone has.

So a program may say ``import farandole as dist``. Functions are torch's own, over groups of any
backend; without a default group they raise farandole's InvalidArgument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from farandole.arguments import default_group, timeout_of
from farandole.called import collective
from farandole.collectives import all_gather, all_to_all, reduce_scatter
from farandole.distributed import destroy

__all__ = [
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all_single",
    "batch_isend_irecv",
    "broadcast_object_list",
    "destroy_process_group",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "irecv",
    "is_available",
    "is_torchelastic_launched",
    "isend",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv_object_list",
    "reduce_scatter_tensor",
    "scatter_object_list",
    "send_object_list",
]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _needs_group(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        default_group()
        given: dict[str, Any] = dict(kwargs)
        if "timeout" in given:
            given["timeout"] = timeout_of(function.__name__, given["timeout"])
        return function(*args, **given)

    return call


GroupMember = dist.GroupMember
P2POp = dist.P2POp
ProcessGroup = dist.ProcessGroup
ReduceOp = dist.ReduceOp
Work = dist.Work
group = dist.group

is_available = dist.is_available
is_torchelastic_launched = dist.is_torchelastic_launched
get_rank = _needs_group(dist.get_rank)
get_world_size = _needs_group(dist.get_world_size)
get_backend = _needs_group(dist.get_backend)
get_global_rank = _needs_group(dist.get_global_rank)
get_group_rank = _needs_group(dist.get_group_rank)
new_subgroups = collective(_needs_group(dist.new_subgroups))
new_subgroups_by_enumeration = collective(_needs_group(dist.new_subgroups_by_enumeration))
get_process_group_ranks = _needs_group(dist.get_process_group_ranks)

all_gather_into_tensor = all_gather
reduce_scatter_tensor = reduce_scatter


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work:
    """all_to_all() with torch's order of arguments."""
    splits = {"output_splits": output_split_sizes, "input_splits": input_split_sizes}
    return all_to_all(output, input, group, async_op, **splits)


destroy_process_group = destroy
isend = dist.isend  # as it is: P2POp asks which function it gets
irecv = dist.irecv
batch_isend_irecv = _needs_group(dist.batch_isend_irecv)

all_gather_object = collective(_needs_group(dist.all_gather_object))
broadcast_object_list = collective(_needs_group(dist.broadcast_object_list))
gather_object = collective(_needs_group(dist.gather_object))
scatter_object_list = collective(_needs_group(dist.scatter_object_list))
send_object_list = _needs_group(dist.send_object_list)
recv_object_list = _needs_group(dist.recv_object_list)
