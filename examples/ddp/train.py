# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel can do, in one loop; docs/ddp.md explains it.

torchrun --standalone --nproc-per-node=2 examples/ddp/train.py
"""

import farandole
import torch
from torch import nn

farandole.init_process_group()
torch.manual_seed(farandole.rank())
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
net = farandole.SyncBatchNorm.convert_sync_batchnorm(net)  # on the CPU too
model = farandole.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_of = nn.CrossEntropyLoss()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of different sizes, as sequences have."""
    sizes = torch.randint(4, 12, (count,)).tolist()
    return [(torch.randn(size, 16), torch.randint(0, 4, (size,))) for size in sizes]


# Gradient accumulation: the forward decides, so it belongs into no_sync() too.
for (x0, y0), (x1, y1) in zip(batches(5), batches(5), strict=True):
    optimizer.zero_grad()
    with model.no_sync():
        loss_of(model(x0), y0).backward()
    loss_of(model(x1), y1).backward()
    optimizer.step()

# A mean over the items of all ranks, not over the ranks.
for x, y in batches(5):
    optimizer.zero_grad()
    model.set_loss_weight(len(x))
    loss_of(model(x), y).backward()
    optimizer.step()
model.set_loss_weight(None)

# Ranks with different numbers of batches. (A SyncBatchNorm would wait for ranks without one.)
plain = farandole.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
with plain.join(divide_by_initial_world_size=False):
    for x, y in batches(3 + farandole.rank()):
        optimizer.zero_grad()
        loss_of(plain(x), y).backward()
        optimizer.step()

# A step that fails on one rank is told to all, and training goes on.
for x, y in batches(3):
    optimizer.zero_grad()
    try:
        loss_of(plain(x), y).backward()
    except farandole.BackwardError as error:
        print(error)
        continue
    optimizer.step()

# A batch that one rank cannot use is left out by all.
for x, y in batches(3):
    optimizer.zero_grad()
    loss = loss_of(plain(x), y)
    bad = (~loss.isfinite()).float()
    torch.distributed.all_reduce(bad)  # now alike on every rank
    if bad:
        continue
    loss.backward()
    optimizer.step()

if farandole.rank() == 0:
    print(model.stats())
    torch.save(net.state_dict(), "/dev/null")  # or model.state_dict(), with "module." before names
farandole.destroy()
