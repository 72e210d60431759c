# SPDX-License-Identifier: Apache-2.0
"""The smallest training over Farandole; examples/cmake_project is the same in C++, bit for bit.

torchrun --standalone --nproc-per-node=2 examples/quickstart/train.py
"""

import farandole
import torch

farandole.init_process_group()  # finds its peers, or runs alone
torch.manual_seed(farandole.rank())  # each rank has data of its own; the model is rank 0's
model = farandole.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(5):
    for _ in range(100):
        images = torch.randn(32, 64)
        labels = images[:, :10].argmax(1)  # the class: the brightest of ten pixels
        outputs = model(images)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()  # gradients become the average of all ranks' while it runs
        optimizer.step()
    accuracy = (outputs.argmax(1) == labels).float().mean()
    where = f"rank {farandole.rank()} of {farandole.world_size()}: epoch {epoch}"
    print(f"{where}, loss {loss.item():.9g}, accuracy {accuracy.item():.3f}", flush=True)
