# SPDX-License-Identifier: Apache-2.0
"""A notebook for HorovodRunner, which runs on farandole-compat as it is: ranks read files.

python examples/spark/train.py [a folder that all hosts see]
"""

import sys
import tempfile
from pathlib import Path

import horovod.torch as hvd
import torch
from pyspark.sql import DataFrame, SparkSession
from sparkdl import HorovodRunner
from sparkdl.horovod import log_to_driver
from torch import Tensor


def write_files(table: DataFrame, folder: str) -> None:
    """One file for each partition of the table, whose rows are features and a label."""

    def write(number: int, rows) -> list[str]:
        values = torch.tensor([list(row) for row in rows], dtype=torch.float32)
        path = Path(folder) / f"part-{number:05}.pt"
        torch.save({"x": values[:, :-1], "y": values[:, -1].long()}, path)
        return [str(path)]

    table.rdd.mapPartitionsWithIndex(write).collect()


def read_files(folder: str, rank: int, size: int) -> tuple[Tensor, Tensor]:
    """Every size-th file, from number rank on."""
    parts = [torch.load(path) for path in sorted(Path(folder).glob("*.pt"))[rank::size]]
    return torch.cat([part["x"] for part in parts]), torch.cat([part["y"] for part in parts])


def train(folder: str, epochs: int = 3, batch: int = 16) -> float:
    """What every rank runs; returns the last loss."""
    hvd.init()
    x, y = read_files(folder, hvd.rank(), hvd.size())
    # Files differ in length: all ranks take as many steps as the one with the fewest rows.
    steps = int(hvd.allreduce(torch.tensor(len(x) // batch), op=hvd.Min))

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        total = 0.0
        for i in range(steps):
            rows = slice(i * batch, (i + 1) * batch)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item()
        average = hvd.allreduce(torch.tensor(total / steps), name="loss").item()
        if hvd.rank() == 0:
            log_to_driver(f"epoch {epoch}: loss {average:.4f}")
    return average


def main(folder: str) -> None:
    """On the driver: the data, then the training."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    table = spark.range(512, numPartitions=5).selectExpr(
        "sin(id)", "cos(id * 3)", "sin(id * id)", "int(sin(id) > cos(id * 3))"
    )
    write_files(table, folder)
    HorovodRunner(np=-2).run(train, folder=folder, epochs=1)  # first on the driver alone
    loss = HorovodRunner(np=2).run(train, folder=folder)
    print(f"the last loss is {loss:.4f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
