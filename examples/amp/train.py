# SPDX-License-Identifier: Apache-2.0
"""What autocast, GradScaler and report_nonfinite do, in one program; docs/amp.md explains it.

torchrun --standalone --nproc-per-node=2 examples/amp/train.py
"""

import farandole
import torch
from torch import nn

farandole.init_process_group()
torch.manual_seed(farandole.rank())
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
loss_of = nn.CrossEntropyLoss()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and classes of this rank."""
    return [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(count)]


model = farandole.DistributedDataParallel(net)
optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

# bfloat16 has the range of float32 and needs no scaler.
for x, y in batches(5):
    with farandole.autocast("cpu", dtype="bfloat16"):
        loss = loss_of(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# float16 does: without it small gradients are zero.
scaler = farandole.GradScaler()
for x, y in batches(5):
    with farandole.autocast("cpu", dtype="float16"):
        loss = loss_of(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # only for what looks at gradients before the step
    optimizer.clip_grad_norm_(1.0)
    scaler.step(optimizer)
    scaler.update()

# An Inf on one rank: the step is left out on all, and the scale is halved on all.
x, y = batches(1)[0]
optimizer.zero_grad()
scaler.scale(loss_of(model(x), y)).backward()
if farandole.rank() == 1:
    net[0].bias.grad[3] = torch.inf
scaler.step(optimizer)
scaler.update()
print(f"the scale on rank {farandole.rank()} is {scaler.get_scale():.0f}")

# Who had it, and where: an error on every rank, before it is in any parameter.
plain = nn.Linear(16, 4)
watched = farandole.DistributedDataParallel(plain, report_nonfinite="raise")
x, y = batches(1)[0]
if farandole.rank() == 1:
    x[2, 5] = torch.nan  # a sample that is broken
try:
    loss_of(watched(x), y).backward()
except farandole.BackwardError as error:
    print(error)
