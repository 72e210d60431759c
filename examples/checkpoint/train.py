# SPDX-License-Identifier: Apache-2.0
"""A training that goes on where it was ended.

torchrun --nproc-per-node 2 train.py CHECKPOINTS
"""

import sys

import farandole
import torch
from torch import nn

if len(sys.argv) < 2:
    sys.exit(__doc__)
PATH = sys.argv[1]

farandole.init_process_group()
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
model = farandole.DistributedDataParallel(net)
optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
training = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

values = farandole.resume_or_start(PATH, **training) or {"step": 0}
for step in range(values["step"], 20):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 9:
        values["step"] = step + 1
        farandole.save_checkpoint(PATH, **training, values=values, step=step + 1, keep=2)
print(f"rank {farandole.rank()}: from step {values['step']}")

pending = farandole.save_checkpoint(PATH, **training, values=values, asynchronous=True)
# ... training goes on ...
folder = pending.wait()

preemption = farandole.CheckpointOnSignal()
for step in range(values["step"], 30):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    if preemption.requested():
        farandole.save_checkpoint(PATH, **training, values={"step": step + 1})
        preemption.exit()
