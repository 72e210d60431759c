# SPDX-License-Identifier: Apache-2.0
"""The groups of torch.distributed that a rank joins."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.harness.answering import Member


@contextmanager
def joined(backend: str, member: Member) -> Iterator[None]:
    """With one thread in the group of ranks that meet in the member's folder."""
    torch.set_num_threads(1)
    if backend == "farandole":
        importlib.import_module("farandole")
    place = f"file://{member.folder}/torch"
    dist.init_process_group(
        backend, init_method=place, rank=member.rank, world_size=member.world_size
    )
    yield
    dist.destroy_process_group()


@dataclass(frozen=True)
class Groups:
    """The ranks, over each backend."""

    farandole: dist.ProcessGroup
    gloo: dist.ProcessGroup


@contextmanager
def both_joined(member: Member) -> Iterator[Groups]:
    """Farandole's is the default group."""
    with joined("farandole", member):
        import farandole

        yield Groups(farandole.default_group(), dist.new_group(backend="gloo"))
