# SPDX-License-Identifier: Apache-2.0
"""A training as SMDDP's second version has it: torch's own functions, and the backend "smddp".

    farandole run -n 2 examples/sagemaker/smddp_v2.py

It imports nothing of Farandole: the package farandole-compat provides the names.
"""

import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (registers the backend)
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    """Fit a line to points; each rank has its share of them."""
    dist.init_process_group(backend="smddp")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["SMDATAPARALLEL_LOCAL_RANK"])

    x = torch.linspace(-1, 1, 64).reshape(64, 1)[rank::world_size]
    y = 3 * x + 0.5
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(60):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.all_reduce(loss.detach_(), op=dist.ReduceOp.AVG)
    if rank == 0:
        slope, offset = model.module.weight.item(), model.module.bias.item()
        print(f"{dist.get_backend()}: loss {loss:.6f}, y = {slope:.3f} x + {offset:.3f}")
    print(f"rank {rank} is rank {local_rank} of its host")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
