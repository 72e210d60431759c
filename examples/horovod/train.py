# SPDX-License-Identifier: Apache-2.0
"""A training as scripts for Horovod are written: it runs on farandole-compat as it is.

farandole run -n 2 examples/horovod/train.py
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def metric_average(value: float, name: str) -> float:
    """The average of a number over the ranks."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


def main() -> None:
    """What every rank runs."""
    hvd.init()
    torch.manual_seed(42)
    images = torch.randn(512, 1, 8, 8)
    dataset = TensorDataset(images, images.mean(dim=1).flatten(1)[:, :4].argmax(dim=1))
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    torch.manual_seed(hvd.rank())  # ranks begin with different parameters
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 32), nn.ReLU(),
        nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Average
    )

    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            total += loss.item()
        average = metric_average(total / len(loader), "loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {average:.5f}")


if __name__ == "__main__":
    main()
