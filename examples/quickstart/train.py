# SPDX-License-Identifier: Apache-2.0
"""The smallest training over Farandole; examples/cmake_project is the same in C++, bit for bit.

torchrun --standalone --nproc-per-node=2 examples/quickstart/train.py
"""

import farandole
import torch

farandole.init_process_group()  # finds its peers, or runs alone
torch.manual_seed(farandole.rank())  # each rank has data of its own; the model is rank 0's
model = farandole.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    images, labels = torch.randn(32, 64), torch.randint(10, (32,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()  # gradients become the average of all ranks' while it runs
    optimizer.step()

print(f"rank {farandole.rank()} of {farandole.world_size()}: loss {loss.item():.9g}", flush=True)
