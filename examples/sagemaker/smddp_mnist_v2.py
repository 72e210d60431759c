# SPDX-License-Identifier: Apache-2.0
"""A training as SMDDP's second version has it: images of digits, torch's own wrapper and functions.

    farandole run -n 2 examples/sagemaker/smddp_mnist_v2.py --epochs 2

It imports nothing of Farandole: the package farandole-compat provides the names. The batch size is
that of all ranks together, so the losses are the same on any number of ranks.
"""

import argparse
import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (registers the backend)
import torch
import torch.distributed as dist
from smddp_v1 import Net, digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(model, loader, optimizer):
    """One epoch; the mean of this rank's losses."""
    model.train()
    total = torch.zeros(())
    for data, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(loader)


def main():
    """Train, and save the model on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", ""))
    args = parser.parse_args()

    dist.init_process_group(backend="smddp")
    world_size, rank = dist.get_world_size(), dist.get_rank()
    local_rank = int(os.getenv("LOCAL_RANK", "-1"))
    args.batch_size //= world_size

    torch.manual_seed(1)
    data = digits(640)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = DDP(Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean = train(model, loader, optimizer)
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: training loss {mean / world_size:.4f}")
        scheduler.step()
    if args.model_dir and local_rank == 0 and rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.model_dir, "mnist.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
