# SPDX-License-Identifier: Apache-2.0
"""A training that a hook looks at. Its fault: gradients vanish, since a sigmoid is saturated.

torchrun --nproc-per-node 2 train.py FOLDER [STEPS]
"""

import sys

import farandole
import torch
from farandole.debugger import Hook, SaveConfig
from torch import nn

if len(sys.argv) < 2:
    sys.exit(__doc__)
FOLDER = sys.argv[1]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 50

farandole.init_process_group()
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.Sigmoid(), nn.Linear(32, 4))
with torch.no_grad():
    net[0].bias.fill_(30.0)  # where a sigmoid is flat
model = farandole.DistributedDataParallel(net)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

hook = Hook(
    FOLDER,
    include_collections=["gradients", "weights"],
    save_config=SaveConfig(save_interval=10),
    include_workers="all",
)
hook.register_module(model)
hook.register_loss(criterion)
preemption = farandole.CheckpointOnSignal(file=hook.stop_file)

for step in range(STEPS):
    optimizer.zero_grad()
    criterion(model(torch.randn(8, 16)), torch.randint(4, (8,))).backward()
    optimizer.step()
    if preemption.requested():
        print(f"rank {farandole.rank()} stops at step {step}")
        break
farandole.destroy()
