# SPDX-License-Identifier: Apache-2.0
"""A training as Horovod's example for MNIST has it: images of digits, a test after each epoch.

    farandole run -n 2 examples/horovod/mnist.py --epochs 2

It imports nothing of Farandole: the package farandole-compat provides the names. The learning rate
grows with the number of ranks, as there, and --batch-size is that of each rank.
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    """Two convolutions and two linear layers, with dropout."""

    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=5)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3)
        self.drop = nn.Dropout(dropout)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Logarithms of the probabilities of ten digits."""
        x = torch.relu(torch.max_pool2d(self.conv1(x), 2))
        x = torch.relu(torch.max_pool2d(self.drop(self.conv2(x)), 2))
        x = torch.relu(self.fc1(x.flatten(1)))
        return torch.log_softmax(self.fc2(self.drop(x)), dim=1)


def digits(count, seed):
    """Noise, with a bright row that says which digit it is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    images = 0.3 * torch.randn(count, 1, 16, 16, generator=generator)
    images[torch.arange(count), 0, labels + 3] += 1.0
    return TensorDataset(images, labels)


def parse():
    """The options of the example, as far as they mean something without a GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--test-batch-size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    return parser.parse_args()


def train(epoch, model, optimizer, loader, sampler):
    """One epoch."""
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        nn.functional.nll_loss(model(data), target).backward()
        optimizer.step()


def metric_average(value, name):
    """The average of a number over the ranks."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model, loader, sampler):
    """The loss and the share of digits that are right, of all ranks."""
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += nn.functional.nll_loss(output, target, reduction="sum").item()
            right += (output.argmax(dim=1) == target).sum().item()
    return (
        metric_average(loss / len(sampler), "avg_loss"),
        metric_average(right / len(sampler), "avg_accuracy"),
    )


def main():
    """Train, and test after each epoch."""
    args = parse()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    train_set, test_set = digits(640, seed=5), digits(200, seed=6)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size, sampler=test_sampler)

    model = Net(args.dropout)
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    for epoch in range(1, args.epochs + 1):
        train(epoch, model, optimizer, train_loader, train_sampler)
        loss, accuracy = test(model, test_loader, test_sampler)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()
