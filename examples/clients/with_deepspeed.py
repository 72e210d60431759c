# SPDX-License-Identifier: Apache-2.0
"""Trains with DeepSpeed on CPUs.

DS_ACCELERATOR=cpu torchrun --nproc-per-node=2 examples/clients/with_deepspeed.py
"""

import sys

import deepspeed
import farandole  # noqa: F401  (gives torch.distributed the backend)
import torch
from task import BATCH, Rows, make_net, report

if "smddp" in sys.argv:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (the same, by SMDDP's name)

backend = sys.argv[1] if len(sys.argv) > 1 else "farandole"
deepspeed.init_distributed(dist_backend=backend)
net = make_net()
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "zero_optimization": {"stage": 1},
}
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
rows = Rows()
sampler = torch.utils.data.DistributedSampler(rows, shuffle=False)
losses = []
for batch in torch.utils.data.DataLoader(rows, batch_size=BATCH, sampler=sampler):
    loss = torch.nn.functional.cross_entropy(engine(batch["x"]), batch["labels"])
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
report(losses)
torch.distributed.destroy_process_group()
