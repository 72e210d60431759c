# SPDX-License-Identifier: Apache-2.0
"""A model for `farandole bench train --model bench_model:make`, called in this folder."""

import torch
from torch import nn


def make():
    """The model; what makes a batch of so many samples; the loss of a batch, a scalar."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def new_batch(samples):
        return torch.randn(samples, 64), torch.randint(10, (samples,))

    def loss(model, batch):
        inputs, classes = batch
        return nn.functional.cross_entropy(model(inputs), classes)

    return model, new_batch, loss
