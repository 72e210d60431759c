# SPDX-License-Identifier: Apache-2.0
"""An elastic training as scripts for Horovod are written: it runs on farandole-compat as it is.

farandole run -n 3 --min-ranks 2 examples/horovod/elastic.py
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, RATE = 3, 0.02


def main() -> None:
    """What every rank runs."""
    hvd.init()
    torch.manual_seed(42)
    images = torch.randn(384, 64)
    dataset = TensorDataset(images, images[:, :4].argmax(dim=1))
    sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True, seed=1)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * hvd.size(), momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    def on_reset() -> None:
        for group in optimizer.param_groups:
            group["lr"] = RATE * hvd.size()

    state.register_reset_callbacks([on_reset])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        for state.epoch in range(state.epoch, EPOCHS):
            for index, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                sampler.record_batch(index, len(x))
                state.batch += 1
                state.commit()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}: loss {loss.item():.5f}, {hvd.size()} ranks")
            state.batch = 0
            sampler.set_epoch(state.epoch + 1)

    train(state)


if __name__ == "__main__":
    main()
