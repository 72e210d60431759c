# SPDX-License-Identifier: Apache-2.0
"""A function of this program on two ranks, whose results come back: python function.py."""

import farandole
import torch
from farandole.run.function import run_function


def train(steps: int) -> float:
    """One rank's part of a training; all ranks have the same model."""
    farandole.init_process_group()
    torch.manual_seed(farandole.rank())
    model = farandole.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return float(sum(each.sum() for each in model.parameters()))


if __name__ == "__main__":
    sums = run_function(train, (10,), ranks=2)
    assert sums[0] == sums[1]
    print(f"both ranks have the sum {sums[0]:.6f}")
