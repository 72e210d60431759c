# SPDX-License-Identifier: Apache-2.0
"""What replaces SMDDP natively: the same training on Farandole's own names.

farandole run -n 2 examples/sagemaker/smddp_native.py
"""

import farandole
import torch
from torch import nn

farandole.init_process_group()  # finds torchrun's, mpirun's or srun's ranks, or runs alone
rank, world_size = farandole.rank(), farandole.world_size()

x = torch.linspace(-1, 1, 64).reshape(64, 1)[rank::world_size]
y = 3 * x + 0.5
torch.manual_seed(0)
model = farandole.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for _ in range(60):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

farandole.all_reduce(loss.detach_(), op="avg")
if rank == 0:
    print(f"loss {loss:.6f}")
