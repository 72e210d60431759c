# SPDX-License-Identifier: Apache-2.0
"""What the lanes are made of: a module in a wrapper of benchmarks/ddp, and an optimizer."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import farandole
from torch import nn
from torch.amp.grad_scaler import GradScaler as TorchGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer
from torch.optim import AdamW, Optimizer

from benchmarks.ddp.models import Batch
from benchmarks.ddp.training import loss_of
from benchmarks.ddp.ways import wrap_of
from benchmarks.harness.groups import Groups

LEARNING_RATE = 1e-4
# As large as a gradient: a wrong factor shows in the parameters, and rounding is not made large.
EPSILON = 1e-4
SETTINGS: dict[str, Any] = {"lr": LEARNING_RATE, "eps": EPSILON}

MakeOptimizer = Callable[[nn.Module, Groups], Optimizer]


def whole(module: nn.Module, groups: Groups) -> Optimizer:  # noqa: ARG001
    """All state on every rank."""
    return AdamW(module.parameters(), fused=True, **SETTINGS)


def torch_sharded(module: nn.Module, groups: Groups) -> Optimizer:
    """With fused updates and the parameters in torch's buckets, its fastest."""
    fastest = {"parameters_as_bucket_view": True, "fused": True, **SETTINGS}
    return TorchZeroRedundancyOptimizer(
        module.parameters(), AdamW, process_group=groups.gloo, **fastest
    )


def ours_sharded(module: nn.Module, groups: Groups, **how: Any) -> Optimizer:
    """`how`: gradients, shard_over and overlap_with_ddp."""
    return farandole.ZeroRedundancyOptimizer(
        module.parameters(), AdamW, process_group=groups.farandole, **how, **SETTINGS
    )


MAKERS: dict[str, tuple[str, MakeOptimizer]] = {  # by lane: the wrapper and the optimizer
    "local": ("local", whole),
    "torch_zero": ("torch_gloo_view", torch_sharded),
    "ours_full": ("farandole", partial(ours_sharded, gradients="full")),
    "ours_shard": ("farandole", partial(ours_sharded, gradients="shard")),
    "ours_host": ("farandole", partial(ours_sharded, gradients="full", shard_over="host")),
    "ours_overlap": (
        "farandole",
        partial(ours_sharded, gradients="shard", overlap_with_ddp=True),
    ),
    "torch_ddp": ("torch_gloo_view", whole),
    "ours_ddp": ("farandole", whole),
}
SCALERS: dict[str, Callable[[], TorchGradScaler | None]] = {  # by what follows the lane's "+"
    "": lambda: None,
    "scaler": farandole.GradScaler,
    "torch_scaler": partial(TorchGradScaler, "cpu"),
}


class Trainer:
    """A model of its own that one lane trains."""

    def __init__(self, lane: str, model: nn.Module, groups: Groups) -> None:
        unscaled, _, scaler = lane.partition("+")
        wrapper, make_optimizer = MAKERS[unscaled]
        self.module = wrap_of(wrapper)(model, groups)
        self.optimizer = make_optimizer(self.module, groups)
        self.scaler = SCALERS[scaler]()
        self.steps = 0

    def step(self, batch: Batch) -> tuple[int, int, int]:
        """Times: forward began, backward ended, the optimizer ended. zero_grad() comes before."""
        begin = time.perf_counter_ns()
        self.backward(batch)
        middle = time.perf_counter_ns()
        self.update()
        end = time.perf_counter_ns()
        self.steps += 1
        return begin, middle, end

    def backward(self, batch: Batch) -> None:
        """Forward and backward."""
        loss = loss_of(self.module, batch)
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """What follows."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def finish(self) -> None:
        """Waits for parameters that are on their way."""
        if isinstance(self.optimizer, farandole.ZeroRedundancyOptimizer):
            self.optimizer.wait()

    def state_bytes(self) -> int:
        """Of this rank's optimizer; torch's have a counter of steps for each parameter too."""
        if type(self.optimizer) is TorchZeroRedundancyOptimizer:  # isinstance() takes ours for it
            state = self.optimizer.optim.state
        elif type(self.optimizer) is AdamW:
            state = self.optimizer.state
        else:
            return cast(farandole.ZeroRedundancyOptimizer, self.optimizer).state_bytes()
        return sum(int(array.nbytes) for arrays in state.values() for array in arrays.values())
