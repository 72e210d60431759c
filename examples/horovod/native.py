# SPDX-License-Identifier: Apache-2.0
"""The training of train.py without Horovod's interface.

farandole run -n 2 examples/horovod/native.py
"""

import farandole
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """What every rank runs."""
    farandole.init_process_group()
    torch.manual_seed(42)
    images = torch.randn(512, 1, 8, 8)
    dataset = TensorDataset(images, images.mean(dim=1).flatten(1)[:, :4].argmax(dim=1))
    sampler = farandole.DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    torch.manual_seed(farandole.rank())
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 32), nn.ReLU(),
        nn.Linear(32, 4),
    )  # fmt: skip
    model = farandole.DistributedDataParallel(net)  # broadcasts parameters, averages gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * farandole.world_size(), momentum=0.5)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        farandole.all_reduce(total, op="avg")
        if farandole.rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / len(loader):.5f}")
    farandole.destroy()


if __name__ == "__main__":
    main()
