# SPDX-License-Identifier: Apache-2.0
"""One rank of a torch.distributed lane: BACKEND SOCKET FOLDER RANK WORLD_SIZE (from run.py)."""

import functools
import importlib
import sys

import torch
import torch.distributed as dist
from worker import Array, Call, Rank


def make_buffer(count: int) -> tuple[Array, Call]:
    """An ordinary CPU tensor, seen by numpy too, and torch's all_reduce of it."""
    tensor = torch.empty(count, dtype=torch.float32)
    return tensor.numpy(), functools.partial(dist.all_reduce, tensor)


def main(backend: str, path: str, folder: str, rank: int, world_size: int) -> None:
    """Joins the group and serves run.py."""
    torch.set_num_threads(1)
    if backend == "farandole":
        importlib.import_module("farandole")
    dist.init_process_group(
        backend, init_method=f"file://{folder}/torch", rank=rank, world_size=world_size
    )
    Rank(rank, world_size, make_buffer, dist.barrier).serve(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))
