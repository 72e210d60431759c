# SPDX-License-Identifier: Apache-2.0
"""The lanes: ways to take the same training step."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler as TorchGradScaler
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim import AdamW

import farandole
from farandole.bench.train.tasks import Batch, Task

TITLES = {
    "ours": "Farandole",
    "zero": "Farandole with ZeRO-1",
    "torch": "torch's DDP over Farandole",
    "limit": "ranks that never communicate",
    "single": "one process with all cores",
}
OURS = ("ours", "zero")
COMMUNICATING = ("ours", "zero", "torch")
"""Those whose parameters stay equal on all ranks."""
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

_LEARNING_RATE = 1e-4


class Trainer:
    """A model of its own that one lane trains with AdamW."""

    def __init__(self, lane: str, task: Task, precision: str, device: torch.device) -> None:
        torch.manual_seed(0)
        model = task.new_model().to(device)
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self._loss, self._device = task.loss, device
        self._dtype = PRECISIONS[precision]
        self.module = _wrap(lane, model, device)
        self.optimizer = _optimizer(lane, self.module)
        self._scaler: Any = None
        if precision == "fp16":
            self._scaler = farandole.GradScaler() if lane in OURS else TorchGradScaler(device.type)

    def step(self, batch: Batch) -> torch.Tensor:
        """A whole step; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        cast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._dtype is not None:
            cast = torch.autocast(self._device.type, self._dtype)
        with cast:
            loss = self._loss(self.module, batch)
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self.optimizer)
            self._scaler.update()
        return loss.detach()

    def exposed_ms(self) -> float | None:
        """Communication of the last backward that computing did not hide; of ours only."""
        if isinstance(self.module, farandole.DistributedDataParallel):
            return self.module.stats().exposed_ms
        return None


def _wrap(lane: str, model: nn.Module, device: torch.device) -> nn.Module:
    if lane in OURS:
        return farandole.DistributedDataParallel(model)
    if lane == "torch":
        return TorchDistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=farandole.default_group(),
            gradient_as_bucket_view=True,
        )
    return model


def _optimizer(lane: str, module: nn.Module) -> torch.optim.Optimizer:
    if lane == "zero":
        return farandole.ZeroRedundancyOptimizer(module.parameters(), AdamW, lr=_LEARNING_RATE)
    return AdamW(module.parameters(), lr=_LEARNING_RATE, fused=True)
