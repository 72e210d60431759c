# SPDX-License-Identifier: Apache-2.0
"""The training of before.py on Farandole.

farandole run -n 2 after.py
"""

import farandole
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """What every rank runs."""
    farandole.init_process_group()
    torch.manual_seed(0)
    features = torch.randn(512, 16)
    dataset = TensorDataset(features, features[:, :4].argmax(dim=1))
    sampler = farandole.DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    model = farandole.DistributedDataParallel(net)
    optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    scaler = farandole.GradScaler("cpu")
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
