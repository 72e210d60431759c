# SPDX-License-Identifier: Apache-2.0
"""What replaces smdebug natively.

farandole run -n 2 examples/sagemaker/smdebug_native.py FOLDER
"""

import sys

import farandole
import torch
from farandole.debugger import Hook, NoMoreData, SaveConfig, create_trial, invoke_rule, rules
from torch import nn

FOLDER = sys.argv[1]
farandole.init_process_group()
model = farandole.DistributedDataParallel(nn.Linear(4, 2))
criterion = nn.CrossEntropyLoss()

hook = Hook(FOLDER, include_collections=["gradients"], save_config=SaveConfig(save_interval=2))
hook.register_module(model)
hook.register_loss(criterion)
for _ in range(8):
    criterion(model(torch.randn(8, 4)), torch.ones(8, dtype=torch.long)).backward()
    model.zero_grad()
hook.close()

if farandole.rank() == 0:
    rule = rules.VanishingGradient(create_trial(FOLDER))
    try:
        invoke_rule(rule)
    except NoMoreData:
        print(f"{len(rule.findings)} gradients have vanished")
