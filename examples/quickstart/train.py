# SPDX-License-Identifier: Apache-2.0
"""The smallest training over Farandole.

torchrun --standalone --nproc-per-node=2 examples/quickstart/train.py
"""

import farandole
import torch

farandole.init_process_group()  # or dist.init_process_group("farandole")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    images, labels = torch.randn(32, 64), torch.randint(10, (32,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()  # averages the gradients of all ranks through shared memory
    optimizer.step()

print(f"rank {farandole.rank()} of {farandole.world_size()}: loss {loss.item():.3f}", flush=True)
