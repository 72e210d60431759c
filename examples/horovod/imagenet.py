# SPDX-License-Identifier: Apache-2.0
"""A training as Horovod's example for ImageNet has it: ResNet, warm-up, checkpoints and resuming.

    farandole run -n 2 examples/horovod/imagenet.py --epochs 2 --checkpoint-format 'ckpt-{epoch}.pt'

It imports nothing of Farandole: the package farandole-compat provides the names. Images are tiny
and generated, and the network is a small ResNet, so that it trains on CPUs in seconds.
"""

import argparse
import math
import os

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(4, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        """Half the height and width if the stride is 2."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Three blocks, for images of 16 by 16 and eight classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2))
        self.fc = nn.Linear(32, 8)

    def forward(self, x):
        """Scores of eight classes."""
        return self.fc(self.blocks(self.conv(x)).mean(dim=(2, 3)))


def images(count, seed):
    """Noise, with a bright square at one of eight places."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 8
    found = 0.3 * torch.randn(count, 3, 16, 16, generator=generator)
    for image, label in zip(found, labels.tolist(), strict=True):
        image[label % 3, 2 * label : 2 * label + 2, 4:12] += 1.5
    return TensorDataset(found, labels)


class Metric:
    """An average over batches and ranks."""

    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, value):
        """Take one number of each rank."""
        self.sum += hvd.allreduce(value.detach(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        """So far."""
        return self.sum / self.n


def parse():
    """The options of the example, as far as they mean something without a GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches-per-allreduce", type=int, default=1)
    parser.add_argument("--val-batch-size", type=int, default=16)
    parser.add_argument("--checkpoint-format", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--base-lr", type=float, default=0.02)
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=0.00005)
    parser.add_argument("--fp16-allreduce", action="store_true")
    return parser.parse_args()


def adjust_learning_rate(args, optimizer, epoch, batch, batches):
    """From that of one rank to that of all during the warm-up; later a tenth at each stage."""
    if epoch < args.warmup_epochs:
        progress = epoch + float(batch + 1) / batches
        factor = 1.0 / hvd.size() * (progress * (hvd.size() - 1) / args.warmup_epochs + 1)
    else:
        factor = 10.0 ** -sum(epoch >= stage for stage in (30, 60, 80))
    for group in optimizer.param_groups:
        scale = hvd.size() * args.batches_per_allreduce * factor
        group["lr"] = args.base_lr * scale


def train(args, epoch, model, optimizer, loader, sampler):
    """One epoch; a step may have several batches."""
    model.train()
    sampler.set_epoch(epoch)
    loss_metric, accuracy = Metric("train_loss"), Metric("train_accuracy")
    for number, (data, target) in enumerate(loader):
        adjust_learning_rate(args, optimizer, epoch, number, len(loader))
        optimizer.zero_grad()
        for begin in range(0, len(data), args.batch_size):
            data_batch = data[begin : begin + args.batch_size]
            target_batch = target[begin : begin + args.batch_size]
            output = model(data_batch)
            accuracy.update((output.argmax(1) == target_batch).float().mean())
            loss = nn.functional.cross_entropy(output, target_batch)
            loss_metric.update(loss)
            loss.div_(math.ceil(float(len(data)) / args.batch_size))
            loss.backward()
        optimizer.step()
    return loss_metric.avg.item(), accuracy.avg.item()


def validate(model, loader):
    """The loss and the accuracy of all ranks."""
    model.eval()
    loss, accuracy = Metric("val_loss"), Metric("val_accuracy")
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss.update(nn.functional.cross_entropy(output, target))
            accuracy.update((output.argmax(1) == target).float().mean())
    return loss.avg.item(), accuracy.avg.item()


def main():
    """Go on after the last checkpoint, and train."""
    args = parse()
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)

    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    # Rank 0 may see files that the others do not.
    resume_from_epoch = hvd.broadcast(
        torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch"
    ).item()

    allreduce_batch_size = args.batch_size * args.batches_per_allreduce
    train_set, val_set = images(256, seed=7), images(64, seed=8)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    val_sampler = DistributedSampler(val_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=allreduce_batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=args.val_batch_size, sampler=val_sampler)

    model = ResNet()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.base_lr * args.batches_per_allreduce * hvd.size(),
        momentum=args.momentum,
        weight_decay=args.wd,
    )
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
    )
    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(resume_from_epoch, args.epochs):
        loss, accuracy = train(args, epoch, model, optimizer, train_loader, train_sampler)
        val_loss, val_accuracy = validate(model, val_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {100 * accuracy:.1f} %, "
                  f"validation {val_loss:.4f}, {100 * val_accuracy:.1f} %")  # fmt: skip
            if args.checkpoint_format:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


if __name__ == "__main__":
    main()
