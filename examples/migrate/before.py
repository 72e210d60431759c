# SPDX-License-Identifier: Apache-2.0
"""A training with what torch has: DDP, ZeRO-1, autocast and a GradScaler.

torchrun --nproc-per-node 2 before.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """What every rank runs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(512, 16)
    dataset = TensorDataset(features, features[:, :4].argmax(dim=1))
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
        loss = loss.detach()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item() / dist.get_world_size():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
