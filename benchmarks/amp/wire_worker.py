# SPDX-License-Identifier: Apache-2.0
"""One rank that trains over gloo, with gradients in bfloat16 on the wire or as they are.

SIZE SOCKET FOLDER RANK WORLD_SIZE come from run.py. On a line "<lane> <steps>" it trains a small
transformer so many steps.
"""

from dataclasses import dataclass

import farandole
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from benchmarks.amp import tcp_bytes
from benchmarks.ddp.models import Batch, Transformer
from benchmarks.ddp.training import backward, loss_of
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import both_joined
from benchmarks.zero.rank import digest

LEARNING_RATE = 3e-3
VOCABULARY, SUCCESSORS, TOKENS = 256, 4, 32
WIDTH = {"full": 128, "quick": 32}
SEQUENCES, JUDGED_SEQUENCES = 16, 128


@dataclass(frozen=True)
class Way:
    """How gradients travel."""

    is_ours: bool
    has_hook: bool = False
    wire_dtype: torch.dtype | None = None
    shards: bool = False  # with our ZeroRedundancyOptimizer, gradients="shard"

    def wrap(self, model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        """In DDP."""
        ddp = (
            farandole.DistributedDataParallel(
                model, process_group=group, wire_dtype=self.wire_dtype
            )
            if self.is_ours
            else TorchDistributedDataParallel(model, process_group=group)
        )
        if self.has_hook:
            ddp.register_comm_hook(group, bf16_compress_hook)
        return ddp

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW."""
        if not self.shards:
            return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        return farandole.ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, gradients="shard", lr=LEARNING_RATE
        )


WAYS = {
    "ours": Way(is_ours=True),
    "ours_hook": Way(is_ours=True, has_hook=True),
    "ours_wire": Way(is_ours=True, wire_dtype=torch.bfloat16),
    "torch": Way(is_ours=False),
    "torch_hook": Way(is_ours=False, has_hook=True),
    "shard": Way(is_ours=True, shards=True),
    "shard_wire": Way(is_ours=True, wire_dtype=torch.bfloat16, shards=True),
}


def text(sequences: int, generator: torch.Generator) -> Batch:
    """Each token is followed by one of four, so that ln 4 is the least loss to learn."""
    successors = torch.randint(
        VOCABULARY, (VOCABULARY, SUCCESSORS), generator=torch.Generator().manual_seed(0)
    )
    tokens = [torch.randint(VOCABULARY, (sequences,), generator=generator)]
    for _ in range(TOKENS):
        chosen = torch.randint(SUCCESSORS, (sequences,), generator=generator)
        tokens.append(successors[tokens[-1], chosen])
    whole = torch.stack(tokens, dim=1)
    return whole[:, :-1], whole[:, 1:]


class Training:
    """A model of its own that one lane trains."""

    def __init__(self, size: str, way: Way, group: dist.ProcessGroup) -> None:
        torch.manual_seed(0)
        self.model = Transformer(WIDTH[size], 2, 4, VOCABULARY, TOKENS)
        self.ddp = way.wrap(self.model, group)
        self.optimizer = way.optimizer(self.model)
        self.generator = torch.Generator().manual_seed(2 + dist.get_rank())
        self.judged = text(JUDGED_SEQUENCES, torch.Generator().manual_seed(1))

    def step(self) -> None:
        """Until new parameters are there."""
        self.optimizer.zero_grad()
        backward(self.ddp, text(SEQUENCES, self.generator))
        self.optimizer.step()
        if isinstance(self.optimizer, farandole.ZeroRedundancyOptimizer):
            self.optimizer.wait()

    def bytes_of_step(self) -> int:
        """One more step, and what came of it to this rank."""
        farandole.barrier()  # in shared memory: nothing comes over TCP
        before = tcp_bytes.received()
        farandole.barrier()
        self.step()
        farandole.barrier()
        return tcp_bytes.received() - before

    def loss(self) -> float:
        """Of text that no rank trains on."""
        with torch.no_grad():
            return float(loss_of(self.model, self.judged))


def train(size: str, way: Way, group: dist.ProcessGroup, steps: int) -> dict[str, object]:
    """The bytes of the last step, and the loss before the first and after the last."""
    training = Training(size, way, group)
    parameters = [parameter.detach() for parameter in training.model.parameters()]
    loss_before = training.loss()
    for _ in range(steps - 1):
        training.step()
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "bytes": training.bytes_of_step(),
        "loss_before": loss_before,
        "loss": training.loss(),
        "digest": digest(parameters),
    }


if __name__ == "__main__":
    (size,), member = this_member()
    with both_joined(member) as groups:
        member.serve(lambda words: train(size, WAYS[words[0]], groups.gloo, int(words[1])))
