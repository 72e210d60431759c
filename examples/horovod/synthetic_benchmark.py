# SPDX-License-Identifier: Apache-2.0
"""Images a second, as Horovod's synthetic benchmark measures them.

    farandole run -n 2 examples/horovod/synthetic_benchmark.py --num-iters 3

It imports nothing of Farandole: the package farandole-compat provides the names. The network is a
small one of convolutions, where the original takes one of torchvision.
"""

import argparse
import timeit

import horovod.torch as hvd
import torch
from torch import nn


def net():
    """Three convolutions and a linear layer, for images of 32 by 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 9, 100),
    )  # fmt: skip


def parse():
    """The options of the benchmark, as far as they mean something without a GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--num-warmup-batches", type=int, default=2)
    parser.add_argument("--num-batches-per-iter", type=int, default=3)
    parser.add_argument("--num-iters", type=int, default=3)
    parser.add_argument("--use-adasum", action="store_true")
    return parser.parse_args()


def main():
    """Time batches of random images, and say how many images all ranks take in a second."""
    args = parse()
    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01 * (1 if args.use_adasum else hvd.size())
    )
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    data = torch.randn(args.batch_size, 3, 32, 32)
    target = torch.randint(100, (args.batch_size,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    def log(text):
        if hvd.rank() == 0:
            print(text)

    timeit.timeit(step, number=args.num_warmup_batches)
    rates = []
    for number in range(args.num_iters):
        seconds = timeit.timeit(step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"iteration {number}: {rates[-1]:.1f} images/s per rank")
    mean = torch.tensor(rates).mean().item()
    log(f"images/s per rank: {mean:.1f}")
    log(f"images/s of {hvd.size()} ranks: {hvd.size() * mean:.1f}")
    digest = sum(parameter.double().sum().item() for parameter in model.parameters())
    log(f"sum of parameters: {digest:.6f}")


if __name__ == "__main__":
    main()
