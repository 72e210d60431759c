# SPDX-License-Identifier: Apache-2.0
"""One rank that calls a collective and takes a few steps: short enough for compute-sanitizer.

python tests/gpu/short_run.py DEVICE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from benchmarks.gpu.accelerator import ACCELERATORS


def main(name: str) -> None:
    accelerator = ACCELERATORS[name]
    os.environ.update(accelerator.environment())
    accelerator.load()
    import farandole

    farandole.init_process_group()
    tensor = torch.ones(1003, device=name)
    dist.all_reduce(tensor)
    assert tensor.sum().item() == 1003
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    ddp = farandole.DistributedDataParallel(model.to(name))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2, fused=True)
    x = torch.randn(16, 64).to(name)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = ddp(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert losses[-1].item() < losses[0].item()
    accelerator.settle()
    farandole.destroy()
    print(f"loss {losses[0].item():.4f} to {losses[-1].item():.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
