# SPDX-License-Identifier: Apache-2.0
"""The lanes: libraries that run the same collectives on the same ranks in turn."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

import farandole
from farandole.bench import ranks as ranks_of_run
from farandole.bench.collectives.operations import Operation

OURS = "farandole"
PEERS = ("gloo", "nccl", "mpi")

Call = Callable[[], object]

_PEER_TIMEOUT = timedelta(seconds=120)
_TORCH_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class Lane(Protocol):
    """One library."""

    name: str

    def call(
        self, operation: Operation, op: str, source: Tensor, target: Tensor, root: int
    ) -> Call:
        """Does ``operation`` from ``source`` to ``target`` (the same where it is in place).

        Raises:
            NotImplementedError: the library lacks it; on every rank, before anything is sent.
        """


class TorchLane:
    """A group of torch.distributed: Farandole's own, gloo or NCCL."""

    def __init__(self, name: str, group: dist.ProcessGroup) -> None:
        self.name, self._group = name, group

    def call(
        self, operation: Operation, op: str, source: Tensor, target: Tensor, root: int
    ) -> Call:
        """See Lane."""
        group, ranks = self._group, self._group.size()
        is_root = group.rank() == root
        reduction = _TORCH_OPS.get(op, dist.ReduceOp.SUM)
        calls: dict[str, Callable[[], Call]] = {
            "all_reduce": lambda: partial(dist.all_reduce, source, reduction, group),
            "reduce_scatter": lambda: partial(
                dist.reduce_scatter_tensor, target, source, reduction, group
            ),
            "all_gather": lambda: partial(dist.all_gather_into_tensor, target, source, group),
            "broadcast": lambda: partial(dist.broadcast, source, root, group),
            "reduce": lambda: partial(dist.reduce, source, root, reduction, group),
            "gather": lambda: partial(
                dist.gather, source, list(target.chunk(ranks)) if is_root else None, root, group
            ),
            "scatter": lambda: partial(
                dist.scatter, target, list(source.chunk(ranks)) if is_root else None, root, group
            ),
            "all_to_all": lambda: partial(
                dist.all_to_all_single, target, source, None, None, group
            ),
            "send_recv": lambda: self._send_recv(source, target),
        }
        return calls[operation.name]()

    def _send_recv(self, source: Tensor, target: Tensor) -> Call:
        """To the next rank, from the one before, both at once."""
        rank, ranks = self._group.rank(), self._group.size()
        send = dist.P2POp(dist.isend, source, (rank + 1) % ranks, self._group)
        receive = dist.P2POp(dist.irecv, target, (rank - 1) % ranks, self._group)

        def exchange() -> None:
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()

        return exchange


def obstacle_to(peer: str, device: str) -> str:
    """Why a peer cannot be measured beside Farandole; empty if it can."""
    if peer == "gloo":
        if device != "cpu":
            return "gloo is for tensors on the CPU"
        return "" if dist.is_gloo_available() else "this torch is built without gloo"
    if peer == "nccl":
        if device != "cuda":
            return "NCCL needs tensors on GPUs"
        if not dist.is_nccl_available():
            return "this torch is built without NCCL"
        if farandole.local_world_size() > torch.cuda.device_count():
            return "ranks share a GPU, which NCCL refuses"
        return ""
    if device != "cpu":
        return "the lane mpi measures tensors on the CPU"
    if ranks_of_run.launcher() != "mpirun":
        return "mpirun did not start these ranks, as it does with --peers mpi"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed; pip install mpi4py"
    from farandole.bench.collectives.mpi_lane import is_of_these_ranks

    if not is_of_these_ranks(farandole.rank(), farandole.world_size()):
        return "mpi4py uses another MPI than the mpirun that started these ranks"
    return ""


def make(peer: str) -> Lane:
    """A peer that has no obstacle; collective."""
    if peer == "mpi":
        from farandole.bench.collectives.mpi_lane import MpiLane

        return MpiLane()
    group = dist.new_group(backend=peer, timeout=_PEER_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return TorchLane(peer, group)
