# SPDX-License-Identifier: Apache-2.0
"""A training with evaluations, of which all elements of some tensors are saved.

python evaluate.py FOLDER
"""

import sys

import torch
from farandole.debugger import Hook, ModeKeys, ReductionConfig, SaveConfigMode, create_trial
from torch import nn

if len(sys.argv) < 2:
    sys.exit(__doc__)
FOLDER = sys.argv[1]

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
hook = Hook(
    FOLDER,
    save_config={ModeKeys.TRAIN: SaveConfigMode(100), ModeKeys.EVAL: SaveConfigMode(1)},
    reduction_config=ReductionConfig(["min", "max"], norms=["l2"], save_raw_tensor=True),
    include_collections=["relu_output"],
    include_regex="^2_output",
)
hook.register_module(model)
for _ in range(2):
    hook.set_mode(ModeKeys.TRAIN)
    for _ in range(60):
        model(torch.randn(8, 16)).square().mean().backward()
    hook.set_mode(ModeKeys.EVAL)
    with torch.no_grad():
        outputs = model(torch.randn(8, 16))
    hook.save_scalar("accuracy", 0.9)
    hook.save_tensor("largest", outputs.amax(1))
hook.close()

trial = create_trial(FOLDER)
print(trial.steps(ModeKeys.TRAIN), trial.steps(ModeKeys.EVAL), trial.tensor_names())
print(trial.tensor("2_output_0").value(1, ModeKeys.EVAL).shape)
