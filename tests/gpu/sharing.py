# SPDX-License-Identifier: Apache-2.0
"""Several ranks on one GPU, which NCCL refuses unless one of its variables is set.

Without NCCL their tensors are staged through host memory.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from rank_set import RankSet, World

VARIABLES = ["NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"]
MULTI_RANK_SINCE = (2, 30)


def skip_if_impossible(world: World) -> None:
    """For what is known without trying."""
    version = torch.cuda.nccl.version()
    if world.sharing == "NCCL_MULTI_RANK_GPU_ENABLE" and version[:2] < MULTI_RANK_SINCE:
        pytest.skip(f"NCCL {'.'.join(map(str, version))} is older than 2.30, which has it")


def skip_if_torch_fails_too(world: World) -> None:
    """Called when a group of ours has failed: with torch's own group NCCL itself is to blame."""
    peers = RankSet(world, backend="nccl")
    try:
        peers.run(sum_of_ranks)
    except AssertionError as failure:
        last = str(failure).strip().splitlines()[-1]
        pytest.skip(f"torch's own NCCL group does not work so either: {last}")
    finally:
        peers.kill()


def sum_of_ranks(rank: int, world: World) -> None:
    """A first collective, which forms NCCL's communicator."""
    tensor = torch.full((1000,), float(rank), device=world.type)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size * (world.size - 1) / 2] * 1000
