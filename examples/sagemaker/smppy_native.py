# SPDX-License-Identifier: Apache-2.0
"""What replaces smppy natively.

farandole run -n 2 examples/sagemaker/smppy_native.py FOLDER
"""

import sys

import farandole
import torch
from torch import nn

FOLDER = sys.argv[1]
farandole.init_process_group()
model = farandole.DistributedDataParallel(nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

farandole.profiler.start(FOLDER)  # steps, backwards and collectives have names by themselves
for _ in range(20):
    with farandole.profiler.annotate("Loss"):
        loss = model(torch.ones(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
farandole.profiler.stop()
if farandole.rank() == 0:  # or: farandole report FOLDER
    farandole.profiler.export_chrome_trace(FOLDER, FOLDER + "/all-ranks.json.gz")
