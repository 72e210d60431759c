# SPDX-License-Identifier: Apache-2.0
"""A training that goes on when ranks are lost and when new ones come.

farandole run -n 3 --min-ranks 2 examples/elastic/train.py
"""

import farandole
import torch
from farandole import elastic
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, RATE = 3, 0.02


def main() -> None:
    """What every rank runs."""
    farandole.init_process_group()
    torch.manual_seed(42)
    images = torch.randn(384, 64)
    dataset = TensorDataset(images, images[:, :4].argmax(dim=1))
    sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=1)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.5)
    state = elastic.TorchState(net, optimizer, sampler=sampler, epoch=0)

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        model = farandole.DistributedDataParallel(net)  # of the ranks that there are now
        for group in optimizer.param_groups:
            group["lr"] = RATE * farandole.world_size()
        for state.epoch in range(state.epoch, EPOCHS):
            for index, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                sampler.record_batch(index, len(x))
                state.commit()
            if farandole.rank() == 0:
                print(f"epoch {state.epoch}: loss {loss.item():.5f}")
            sampler.set_epoch(state.epoch + 1)

    train(state)


if __name__ == "__main__":
    main()
