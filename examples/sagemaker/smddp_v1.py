# SPDX-License-Identifier: Apache-2.0
"""A training as SMDDP's first version has it: images of digits, one epoch after the other.

    farandole run -n 2 examples/sagemaker/smddp_v1.py --epochs 2

It imports nothing of Farandole: the package farandole-compat provides the names. The batch size is
that of all ranks together, so the losses are the same on any number of ranks.
"""

import argparse
import os

import smdistributed.dataparallel.torch.distributed as dist
import torch
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.fc1 = nn.Linear(16 * 16, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Logarithms of the probabilities of ten digits."""
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 3)
        x = torch.relu(self.fc1(torch.flatten(x, 1)))
        return torch.log_softmax(self.fc2(x), dim=1)


def digits(count):
    """Noise, with a bright row or column that says which digit it is."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(count) % 10
    images = 0.3 * torch.randn(count, 1, 16, 16, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, label + 3] += 1.0
    return TensorDataset(images, labels)


def train(model, loader, optimizer):
    """One epoch; the mean loss of this rank."""
    model.train()
    total = 0.0
    for data, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def test(model, loader):
    """The sum of losses and the number of right answers of all ranks."""
    model.eval()
    sums = torch.zeros(2)
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            sums[0] += nn.functional.nll_loss(output, target, reduction="sum")
            sums[1] += (output.argmax(dim=1) == target).sum()
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    return sums.tolist()


def main():
    """Train, test, and save the model on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", ""))
    args = parser.parse_args()

    dist.init_process_group()
    world_size, rank = dist.get_world_size(), dist.get_rank()
    args.batch_size //= world_size

    torch.manual_seed(1)
    data = digits(640)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = DDP(Net(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean = torch.tensor(train(model, loader, optimizer))
        dist.all_reduce(mean, op=dist.ReduceOp.AVERAGE)
        loss, right = test(model, loader)
        if rank == 0:
            print(f"epoch {epoch}: training loss {mean:.4f}, test loss {loss / len(data):.4f}, "
                  f"{100 * right / len(data):.1f} % right")  # fmt: skip
    if rank == 0 and args.model_dir:
        torch.save(model.module.state_dict(), os.path.join(args.model_dir, "model.pt"))
    dist.barrier()


if __name__ == "__main__":
    main()
