# SPDX-License-Identifier: Apache-2.0
"""What ZeroRedundancyOptimizer can do, in one program; docs/zero.md explains it.

torchrun --standalone --nproc-per-node=2 examples/zero/train.py
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


# Each rank keeps its part of the state, and every rank gets all new parameters.
model = farandole.DistributedDataParallel(net)
optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
for x, y in batches(10):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()
    scheduler.step()
print(f"{optimizer.state_bytes()} bytes of state on rank {optimizer.rank}")

# A checkpoint is that of an unsharded optimizer.
optimizer.consolidate_state_dict(to=0)
saved = [optimizer.state_dict() if farandole.rank() == 0 else None]  # what torch.save() takes
torch.distributed.broadcast_object_list(saved)
optimizer.load_state_dict(saved[0])  # the same on every rank, of which there may be others now

# Gradients that only step() averages: one pass over memory does it all.
del optimizer
optimizer = farandole.ZeroRedundancyOptimizer(
    model.parameters(), torch.optim.AdamW, gradients="shard", lr=1e-3
)
for (x0, y0), (x1, y1) in zip(batches(5), batches(5), strict=True):
    optimizer.zero_grad()
    with model.no_sync():
        loss_of(model(x0), y0).backward()
    loss_of(model(x1), y1).backward()
    optimizer.clip_grad_norm_(1.0)  # not torch's, which would see this rank's gradients alone
    optimizer.step()

# A part of the model that is trained later.
net[0].requires_grad_(False)
optimizer.rebuild()
for x, y in batches(3):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()

# What fails on one rank is told to all, and training goes on.
if farandole.rank() == 1:
    optimizer.param_groups[0]["lr"] = 0.5
try:
    optimizer.step()
except farandole.StepError as error:
    print(error)
optimizer.param_groups[0]["lr"] = 1e-3
optimizer.step()

# A model of bfloat16 without float32 values beside it; gradients of float32 would travel as one.
half = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).bfloat16()
model = farandole.DistributedDataParallel(half, wire_dtype=torch.bfloat16)
optimizer = farandole.ZeroRedundancyOptimizer(
    model.parameters(),
    torch.optim.AdamW,
    lr=1e-3,
    master_weights=False,
    stochastic_rounding=True,
)
for x, y in batches(3):
    optimizer.zero_grad()
    loss_of(model(x.bfloat16()).float(), y).backward()
    optimizer.step()

# Muon for the matrices: each rank orthogonalizes those that it owns.
muon_model = farandole.DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 64, bias=False), nn.ReLU(), nn.Linear(64, 4, bias=False))
)
muon = farandole.ZeroRedundancyOptimizer(muon_model.parameters(), torch.optim.Muon, lr=1e-3)
for x, y in batches(3):
    muon.zero_grad()
    loss_of(muon_model(x), y).backward()
    muon.step()

hybrid_model = farandole.DistributedDataParallel(nn.Linear(16, 4))
hybrid = farandole.ZeroRedundancyOptimizer(
    hybrid_model.parameters(), torch.optim.AdamW, lr=1e-3, shard_over="host"
)
for x, y in batches(3):
    hybrid.zero_grad()
    loss_of(hybrid_model(x), y).backward()
    hybrid.step()

farandole.destroy()
