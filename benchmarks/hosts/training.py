# SPDX-License-Identifier: Apache-2.0
"""Training steps of the transformer: with DDP forward and backward, with ZeRO AdamW's step too."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import farandole
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim import AdamW

from benchmarks.ddp.training import backward
from benchmarks.harness.groups import Groups
from benchmarks.zero.rank import compare
from benchmarks.zero.tasks import TASKS, batch_of, seeded_model
from benchmarks.zero.trainers import SETTINGS, Trainer

TASK = TASKS["transformer"]
TRAINERS = {
    "farandole_zero": "ours_shard",
    "farandole_zero_overlap": "ours_overlap",
    "farandole_zero_host": "ours_host",
    "gloo_zero": "torch_zero",
}

Steps = tuple[Callable[[], Any], Callable[[], int]]  # a step, and how many elements are wrong then


class Training:
    """The lanes of one rank, for one size of the model.

    Those of DDP are made once, and share parameters, which nobody changes. Those of ZeRO have their
    own, and are made anew when another lane has run: all of them would take too much memory.
    """

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.made: dict[str, Steps] = {}
        self.model: nn.Module | None = None
        self.expected: list[Tensor] = []

    def steps(self, lane: str, size: str) -> Steps:
        """`lane` is one of those in lanes.py."""
        if lane not in self.made:
            self.made = {other: made for other, made in self.made.items() if "zero" not in other}
            gc.collect()
            make = self.sharded if lane in TRAINERS else self.wrapped
            self.made[lane] = self.shared(size) if lane == "alone_zero" else make(lane, size)
        return self.made[lane]

    def wrapped(self, lane: str, size: str) -> Steps:
        """Forward and backward; gradients are the same on all ranks, unless they are alone."""
        self.model = self.model or seeded_model(TASK, size)
        module, batch = self.wrap(lane, self.model), batch_of(TASK, size, self.rank)

        def step() -> None:
            module.zero_grad(set_to_none=True)
            backward(module, batch)

        def wrong() -> int:
            gradients = [parameter.grad for parameter in module.parameters()]
            found = [gradient for gradient in gradients if gradient is not None]
            return 0 if lane == "alone" else self.differing(found)

        return step, wrong

    def wrap(self, lane: str, model: nn.Module) -> nn.Module:
        """In DDP."""
        own = copy.deepcopy(model)
        for parameter, shared in zip(own.parameters(), model.parameters(), strict=True):
            parameter.data = shared.data
        if lane == "alone":
            return own
        if lane.startswith("farandole"):
            wire = torch.bfloat16 if lane.endswith("bf16") else None
            return farandole.DistributedDataParallel(
                own, process_group=self.groups.farandole, wire_dtype=wire
            )
        module = TorchDistributedDataParallel(
            own, process_group=self.groups.gloo, gradient_as_bucket_view=True
        )
        if lane.endswith("bf16"):
            module.register_comm_hook(self.groups.gloo, bf16_compress_hook)
        return module

    def sharded(self, lane: str, size: str) -> Steps:
        """Forward, backward and AdamW's step with ZeRO."""
        trainer = Trainer(TRAINERS[lane], seeded_model(TASK, size), self.groups)
        batch = batch_of(TASK, size, self.rank)

        def step() -> None:
            trainer.optimizer.zero_grad(set_to_none=True)
            trainer.step(batch)

        def wrong() -> int:
            trainer.finish()
            parameters = [each.detach() for each in trainer.module.parameters()]
            wrong = self.differing(parameters)
            if trainer.steps == 1:
                wrong += compare(parameters, self.after_a_step(size))[0]
            return wrong

        return step, wrong

    def shared(self, size: str) -> Steps:
        """The computation of ZeRO: forward, backward, and AdamW on this rank's share."""
        model, batch = seeded_model(TASK, size), batch_of(TASK, size, self.rank)
        parameters = [each for each in model.parameters() if each.numel() >= self.world_size]
        shares = [self.share(each.detach()) for each in parameters]
        optimizer = AdamW(shares, fused=True, **SETTINGS)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            backward(model, batch)
            for share, parameter in zip(shares, parameters, strict=True):
                if parameter.grad is not None:
                    share.grad = self.share(parameter.grad)
            optimizer.step()

        return step, lambda: 0

    def share(self, tensor: Tensor) -> Tensor:
        """A view of this rank's part."""
        count = tensor.numel()
        begin, end = (count * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return tensor.view(-1)[begin:end]

    def differing(self, tensors: list[Tensor]) -> int:
        """How many have another sum on another rank. Collective."""
        sums = torch.stack([each.double().sum() for each in tensors])
        others = [torch.empty_like(sums) for _ in range(self.world_size)]
        dist.all_gather(others, sums, group=self.groups.gloo)
        return sum(int((other != sums).sum()) for other in others)

    def after_a_step(self, size: str) -> list[Tensor]:
        """Parameters of one process that has trained on the batches of all ranks."""
        if not self.expected:
            model = seeded_model(TASK, size)
            optimizer = AdamW(model.parameters(), foreach=False, **SETTINGS)
            for rank in range(self.world_size):
                backward(model, batch_of(TASK, size, rank))  # adds up
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.world_size
            optimizer.step()
            self.expected = [parameter.detach() for parameter in model.parameters()]
        return self.expected
