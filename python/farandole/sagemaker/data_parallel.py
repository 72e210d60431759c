# SPDX-License-Identifier: Apache-2.0
"""What scripts of SageMaker's distributed data parallel library (SMDDP) expect of torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from farandole import _C, c10d, torch_names
from farandole.distributed import init_process_group
from farandole.errors import InvalidArgument
from farandole.logs import LOGGER
from farandole.sagemaker.launch_variables import set_launch_variables

BACKEND = "smddp"
LOCAL_RANK = "SMDATAPARALLEL_LOCAL_RANK"
_PREFIXES = ("SMDATAPARALLEL_", "SMDDP_")


class ReduceOp:
    """The reductions of SMDDP, for ``op`` of all_reduce()."""

    AVERAGE = dist.ReduceOp.AVG
    SUM = dist.ReduceOp.SUM
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX


def register_backend() -> None:
    """Make ``torch.distributed.init_process_group("smddp")`` work: its groups are Farandole's.

    SMDATAPARALLEL_LOCAL_RANK, which frameworks ask for, becomes this rank on its host. Under mpirun
    and srun torch's variables are set too (set_launch_variables()).
    """
    c10d.register(BACKEND)
    _prepare()
    with contextlib.suppress(InvalidArgument):
        set_launch_variables()


def init_default_group(backend: str | None = None, *args: Any, **kwargs: Any) -> dist.ProcessGroup:
    """farandole.init_process_group(), whatever backend is named.

    SMDDP's first version had one backend and passed over the name.
    """
    if backend not in (None, c10d.BACKEND, BACKEND):
        LOGGER.info("init_process_group(%r) makes a group of Farandole", backend)
    _prepare()
    return init_process_group(None, *args, **kwargs)


def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work:
    """farandole.all_to_all() by SMDDP's names."""
    return torch_names.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group, async_op
    )


def _prepare() -> None:
    """Set the local rank once, and say which variables have no effect.

    Where a launcher's variables are incomplete, init_process_group() raises what is wrong.
    """
    if LOCAL_RANK in os.environ:
        return
    unused = sorted(name for name in os.environ if name.startswith(_PREFIXES))
    if unused:
        LOGGER.info("set for SMDDP, without effect on Farandole: %s", ", ".join(unused))
    with contextlib.suppress(InvalidArgument):
        os.environ[LOCAL_RANK] = str(_C.find_launch().local_rank)
