# SPDX-License-Identifier: Apache-2.0
"""Trains with Accelerate: torchrun --nproc-per-node=2 examples/clients/with_accelerate.py."""

import torch
from accelerate import Accelerator
from task import BATCH, Rows, make_group, make_net, report

make_group()  # farandole.init_process_group(), before Accelerator would make another
accelerator = Accelerator(cpu=True)
net = make_net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
losses = []
for batch in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(batch["x"]), batch["labels"])
    accelerator.backward(loss)
    optimizer.step()
    losses.append(loss.item())
report(losses)
torch.distributed.destroy_process_group()
