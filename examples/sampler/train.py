# SPDX-License-Identifier: Apache-2.0
"""What the samplers can do, in one program; docs/sampler.md explains it.

torchrun --standalone --nproc-per-node=2 examples/sampler/train.py
"""

import farandole
import torch
from torch.utils.data import DataLoader, TensorDataset

farandole.init_process_group()
batch_size, epochs = 8, 3
dataset = TensorDataset(torch.randn(100, 4), torch.arange(100))
model = farandole.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_on(features: torch.Tensor) -> None:
    """One step."""
    optimizer.zero_grad()
    model(features).square().mean().backward()
    optimizer.step()


# Each rank has a part of each epoch, in another order each time.
sampler = farandole.DistributedSampler(dataset, seed=1)
loader = DataLoader(dataset, batch_size, sampler=sampler, num_workers=2)
for epoch in range(sampler.epoch, epochs):
    sampler.set_epoch(epoch)
    for batches, (features, _) in enumerate(loader, 1):
        train_on(features)
        if epoch == 1 and batches == 3:  # any place
            checkpoint = sampler.state_dict(batches * batch_size)

# Later, on any number of ranks: the rest of epoch 1, then epoch 2.
sampler = farandole.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size, sampler=sampler, num_workers=2)
sampler.load_state_dict(checkpoint)
for epoch in range(sampler.epoch, epochs):
    sampler.set_epoch(epoch)
    print(f"epoch {epoch}: {len(loader)} batches on rank {farandole.rank()}")
    for features, _ in loader:
        train_on(features)

# An evaluation that counts each sample once, although ranks have 34, 33 and 33 of 100 samples.
exact = farandole.DistributedSampler(dataset, shuffle=False, even_divisible=False)
totals = torch.zeros(2)  # of the loss, and of samples
with torch.no_grad():
    for features, _ in DataLoader(dataset, batch_size, sampler=exact):
        totals += torch.tensor([model.module(features).square().sum(), len(features)])
farandole.all_reduce(totals, op="sum")
print(f"loss {totals[0] / totals[1]:.4f} over {int(totals[1])} samples")

# Rare classes more often: samples are drawn with weights.
weights = torch.where(dataset.tensors[1] < 10, 9.0, 1.0)
drawn = farandole.DistributedWeightedRandomSampler(weights, num_samples=len(dataset))

# Sequences in batches of similar lengths.
lengths = torch.randint(1, 512, (len(dataset),), generator=torch.Generator().manual_seed(0))
similar = farandole.DistributedBucketBatchSampler(lengths, batch_size)
for features, _ in DataLoader(dataset, batch_sampler=similar):
    train_on(features)
