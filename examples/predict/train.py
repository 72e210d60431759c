# SPDX-License-Identifier: Apache-2.0
"""Records a training step and predicts how it scales: docs/predict.md.

farandole bench predict --record train:setup -o step.json    # in this folder
python train.py                                              # or from a program's own loop
"""

import torch
from farandole.bench.predict import (
    Conditions,
    Options,
    StepRecorder,
    draws_of,
    effects,
    predict,
    preset,
)
from torch import nn
from torch.nn import functional


def setup():
    """The module, its optimizer, and what takes a step."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, classes = torch.randn(32, 64), torch.randint(10, (32,))

    def step():
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()

    return model, optimizer, step


def main() -> None:
    """Takes twenty steps, and predicts 64 ranks."""
    model, optimizer, _ = setup()
    batches = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(20)]

    recorder = StepRecorder(model, optimizer)  # the module before DistributedDataParallel
    for x, y in batches:
        with recorder.step():
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    recorder.close()
    step = recorder.recorded()
    step.save("step.json")

    conditions = Conditions(
        step=step,
        links=preset("shared-memory", "25gbe"),
        ranks_per_host=8,
        options=Options(wire_dtype="bfloat16"),
        jitter=step.jitter(),
    )
    draws = draws_of(seed=0)
    prediction = predict(conditions, 64, draws)
    print(f"efficiency {prediction.low:.2f} to {prediction.high:.2f} on 64 ranks")
    print(effects(conditions, 64, draws)[0].change.what)


if __name__ == "__main__":
    main()
