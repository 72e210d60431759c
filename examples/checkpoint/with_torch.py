# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint, of a sharded optimizer.

torchrun --nproc-per-node 2 with_torch.py CHECKPOINTS
"""

import sys

import farandole
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

if len(sys.argv) < 2:
    sys.exit(__doc__)
PATH = sys.argv[1]

farandole.init_process_group()
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
model = farandole.DistributedDataParallel(net)
optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
model(torch.randn(8, 16)).square().mean().backward()
optimizer.step()

state = {"model": get_model_state_dict(model)}
state["optimizer"] = get_optimizer_state_dict(model, optimizer)
dcp.save(state, checkpoint_id=f"{PATH}/of-torch")

dcp.load(state, checkpoint_id=f"{PATH}/of-torch")
set_model_state_dict(model, state["model"])
set_optimizer_state_dict(model, optimizer, state["optimizer"])

farandole.load_checkpoint(f"{PATH}/of-torch", model=model, optimizer=optimizer)

farandole.save_checkpoint(f"{PATH}/ours", model=model, optimizer=optimizer).wait()
state = {"model": get_model_state_dict(model)}
state["optimizer"] = get_optimizer_state_dict(model, optimizer)
dcp.load(state, storage_reader=farandole.CheckpointStorageReader(f"{PATH}/ours"))
print(f"rank {farandole.rank()}: loaded")
