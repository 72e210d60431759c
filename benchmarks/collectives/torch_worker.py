# SPDX-License-Identifier: Apache-2.0
"""One rank of a torch.distributed lane: BACKEND SOCKET FOLDER RANK WORLD_SIZE (from run.py)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.collectives.definition import ROOT, Array, uneven_splits
from benchmarks.collectives.worker import Call, Worker, in_turns
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import joined


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
            pieces_of = uneven_splits(self.rank, self.world_size, len(source))
            return partial(dist.all_to_all_single, output, inputs, pieces_of, pieces_of)
        if operation == "send_recv":
            peer = self.rank ^ 1
            both = partial(dist.send, inputs, peer), partial(dist.recv, output, peer)
            return in_turns(self.rank, *both)
        if operation == "send_stream":
            return self.send_stream(inputs, output, pieces)
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, inputs),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, output, inputs),
            "all_gather": partial(dist.all_gather_into_tensor, output, inputs),
            "broadcast": partial(dist.broadcast, inputs, src=ROOT),
            "reduce": partial(dist.reduce, inputs, dst=ROOT),
            "all_to_all": partial(dist.all_to_all_single, output, inputs),
            "barrier": dist.barrier,
        }
        return calls[operation]

    def send_stream(self, source: torch.Tensor, target: torch.Tensor, pieces: int) -> Call:
        """All pieces at once from the even rank to the odd one, which then acknowledges them."""
        peer, sends = self.rank ^ 1, self.rank % 2 == 0
        begin: Callable[..., dist.Work | None] = dist.isend if sends else dist.irecv
        finish = dist.recv if sends else dist.send
        messages = (source if sends else target).chunk(pieces)
        acknowledgement = torch.zeros(1)

        def stream() -> None:
            works = [begin(message, peer, tag=tag) for tag, message in enumerate(messages)]
            for work in works:
                if work is not None:  # as this rank is in the group
                    work.wait()
            finish(acknowledgement, peer, tag=pieces)

        return stream


if __name__ == "__main__":
    (backend,), member = this_member()
    with joined(backend, member):
        member.serve(Worker(TorchLibrary()).answer)
