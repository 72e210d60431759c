# SPDX-License-Identifier: Apache-2.0
"""A small task that the programs of this folder train on, and which group they train over."""

from __future__ import annotations

import sys

import farandole
import torch
import torch.distributed as dist
from torch import nn

STEPS = 10
BATCH = 8


def make_group() -> None:
    """Farandole's, or for a comparison that of the backend which the command line names."""
    if len(sys.argv) > 1:
        dist.init_process_group(sys.argv[1])
    else:
        farandole.init_process_group()


def make_net() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same on every rank; samplers divide it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.x = torch.randn(2 * STEPS * BATCH, 16)
        self.labels = self.x[:, :4].argmax(dim=1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def report(losses: list[float]) -> None:
    """What a test compares with the same program over gloo."""
    assert losses[-1] < losses[0]
    backend = dist.get_backend()
    print(f"rank {dist.get_rank()} over {backend}: {[loss.hex() for loss in losses]}", flush=True)
