# SPDX-License-Identifier: Apache-2.0
"""One rank of a torch.distributed lane: BACKEND SOCKET FOLDER RANK WORLD_SIZE (from run.py)."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from operations import ROOT, Array, splits
from worker import Call, run


class TorchLibrary:
    """torch.distributed on ordinary CPU tensors, which numpy sees too."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def empty(self, elements: int) -> Array:
        """Aligned as torch aligns tensors."""
        return torch.empty(elements, dtype=torch.float32).numpy()

    def call(self, operation: str, source: Array, target: Array, pieces: int) -> Call:
        """See Library."""
        inputs, output = torch.from_numpy(source), torch.from_numpy(target)
        if operation == "gather":
            parts = list(output.chunk(self.world_size)) if self.rank == ROOT else None
            return partial(dist.gather, inputs, parts, dst=ROOT)
        if operation == "scatter":
            parts = list(inputs.chunk(self.world_size)) if self.rank == ROOT else None
            return partial(dist.scatter, output, parts, src=ROOT)
        if operation == "all_to_all_v":
            pieces_of = splits(self.rank, self.world_size, len(source))
            return partial(dist.all_to_all_single, output, inputs, pieces_of, pieces_of)
        if operation == "send_recv":
            return self.send_recv(inputs, output)
        if operation == "send_stream":
            return self.send_stream(inputs, output, pieces)
        calls = {
            "all_reduce": partial(dist.all_reduce, inputs),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, output, inputs),
            "all_gather": partial(dist.all_gather_into_tensor, output, inputs),
            "broadcast": partial(dist.broadcast, inputs, src=ROOT),
            "reduce": partial(dist.reduce, inputs, dst=ROOT),
            "all_to_all": partial(dist.all_to_all_single, output, inputs),
            "barrier": dist.barrier,
        }
        return calls[operation]

    def send_recv(self, source: torch.Tensor, target: torch.Tensor) -> Call:
        """There and back: even ranks send first."""
        peer, sends = self.rank ^ 1, self.rank % 2 == 0

        def ping_pong() -> None:
            if sends:
                dist.send(source, peer)
            dist.recv(target, peer)
            if not sends:
                dist.send(source, peer)

        return ping_pong

    def send_stream(self, source: torch.Tensor, target: torch.Tensor, pieces: int) -> Call:
        """All pieces at once from the even rank to the odd one, which then acknowledges them."""
        peer, sends = self.rank ^ 1, self.rank % 2 == 0
        begin = dist.isend if sends else dist.irecv
        finish = dist.recv if sends else dist.send
        messages = (source if sends else target).chunk(pieces)
        acknowledgement = torch.zeros(1)

        def stream() -> None:
            works = [begin(message, peer, tag=tag) for tag, message in enumerate(messages)]
            for work in works:
                work.wait()
            finish(acknowledgement, peer, tag=pieces)

        return stream


@contextmanager
def joined(backend: str, folder: str, rank: int, world_size: int) -> Iterator[None]:
    """With one thread in the group of ranks that meet in `folder`."""
    torch.set_num_threads(1)
    if backend == "farandole":
        importlib.import_module("farandole")
    place = f"file://{folder}/torch"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=world_size)
    yield
    dist.destroy_process_group()


def main(backend: str, path: str, folder: str, rank: int, world_size: int) -> None:
    """Joins the group and serves run.py."""
    with joined(backend, folder, rank, world_size):
        run(TorchLibrary(), path)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))
