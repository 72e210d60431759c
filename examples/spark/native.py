# SPDX-License-Identifier: Apache-2.0
"""A function on the ranks of a Spark cluster, and the same by pyspark's TorchDistributor.

python examples/spark/native.py
"""

import farandole
import farandole.spark
import torch
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(epochs: int) -> list[float]:
    """What every rank runs; returns the losses of its own rows."""
    farandole.init_process_group()
    torch.manual_seed(farandole.rank())  # each rank has data of its own; the model is rank 0's
    x = torch.randn(64, 8)
    y = x.sum(dim=1, keepdim=True)
    model = farandole.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        farandole.spark.log_to_driver(f"rank {farandole.rank()}, epoch {epoch}: {losses[-1]:.4f}")
    farandole.destroy()
    return losses


def main() -> None:
    """On the driver."""
    SparkSession.builder.master("local[2]").getOrCreate()
    results = farandole.spark.run(train, (5,), num_proc=2)
    print("last losses:", *(losses[-1] for losses in results))

    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    print("the same:", distributor.run(train, 5) == results[0])


if __name__ == "__main__":
    main()
