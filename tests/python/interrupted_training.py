# SPDX-License-Identifier: Apache-2.0
"""A training for test_checkpoint.py: PATH RESULT [STEP:HOW...], under torchrun.

Each start but the last is ended by itself after a step: HOW is "kill" (SIGKILL on rank 1) or "term"
(SIGTERM on rank 0, which is a preemption). Data, dropout, schedule, scaler and momentum must go on.
"""

import os
import signal
import sys
from pathlib import Path

import farandole
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 24, 4

path, result, *ends = sys.argv[1:]
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
end_after, how = ends[restart].split(":") if restart < len(ends) else ("-1", "")

farandole.init_process_group()
rank, size = farandole.rank(), farandole.world_size()
torch.manual_seed(rank)  # dropout differs
net = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.25), nn.ReLU(), nn.Linear(32, 2))
model = farandole.DistributedDataParallel(net)
optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
scheduler = OneCycleLR(optimizer, 0.1, total_steps=STEPS)
scaler = farandole.GradScaler(init_scale=2.0**8, growth_interval=5)
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(100, 6, generator=generator))
sampler = farandole.data.DistributedSampler(data, seed=3)
training = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
preemption = farandole.CheckpointOnSignal()
# A DataLoader that begins draws a seed for its workers; not from the generator of dropout.
seeds = torch.Generator()


def save(step: int, consumed: int) -> None:
    farandole.save_checkpoint(
        path,
        **training,
        sampler=sampler.state_dict(consumed),
        values={"step": step},
        keep=2,
        asynchronous=step % 2 == 0,
    )


step = (farandole.resume_or_start(path, **training, sampler=sampler) or {"step": 0})["step"]
while step < STEPS:
    for taken, (x,) in enumerate(
        DataLoader(data, BATCH, sampler=sampler, generator=seeds), start=1
    ):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        step += 1
        if step == int(end_after) and how == "kill" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == int(end_after) and how == "term" and rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        save(step, taken * BATCH)
        if preemption.requested():
            preemption.exit()
        if step == STEPS:
            break
    sampler.set_epoch(sampler.epoch + 1)
if rank == 0:
    numbers = [each.detach().tolist() for each in net.parameters()]
    Path(result).write_text(repr((numbers, scaler.get_scale(), scheduler.get_last_lr())))
farandole.destroy()
