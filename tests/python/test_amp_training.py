# SPDX-License-Identifier: Apache-2.0
"""Training in float16 and bfloat16 under autocast reaches the loss of float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from farandole import DistributedDataParallel, GradScaler, ZeroRedundancyOptimizer, autocast
from torch import Tensor, nn

import ranks

RANKS = 2
TOLERANCE = 0.03  # of a cross-entropy


class Digits:
    """Handwritten digits for a convolutional net, as in examples/python/train_digits.py."""

    steps, batch, lr = 50, 32, 5e-3

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels)

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.GroupNorm(4, 16), nn.GELU()),
            *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * 4 * 4, 64), nn.GELU()),
            nn.Linear(64, 10),
        )

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.images), (count,), generator=generator)
        return self.images[chosen], self.labels[chosen]


class Counting(nn.Module):
    """A transformer that continues sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.position = nn.Parameter(torch.randn(12, 32) / 8)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        hidden = self.layers(self.embed(tokens) + self.position, mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


class Sequences:
    """Arithmetic sequences modulo 16, of which each next number is to be told."""

    steps, batch, lr = 120, 32, 1e-2

    def __init__(self, *_: np.ndarray) -> None:
        pass

    def model(self) -> nn.Module:
        return Counting()

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        first, step = torch.randint(16, (2, count, 1), generator=generator)
        numbers = (first + step * torch.arange(13)) % 16
        return numbers[:, :-1], numbers[:, 1:].flatten()


TASKS: dict[str, Callable[..., Digits | Sequences]] = {"digits": Digits, "transformer": Sequences}


def train(
    rank: int, world_size: int, name: str, dtype: str, gradients: str, *data: np.ndarray
) -> list[float]:
    """The loss on new data and the scale at the end."""
    task = TASKS[name](*data)
    torch.manual_seed(0)
    model = task.model()
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.AdamW, lr=task.lr, gradients=gradients
    )
    # Of a scale that no step is left out for at first; those that are would be missing in the loss.
    scaler = GradScaler(init_scale=2.0**8, growth_interval=20, enabled=dtype == "float16")
    for step in range(task.steps):
        generator = torch.Generator().manual_seed(step * world_size + rank)
        x, y = task.draw(task.batch, generator)
        with autocast("cpu", None if dtype == "float32" else dtype, enabled=dtype != "float32"):
            scores = ddp(x).float()
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(scores, y)).backward()
        scaler.unscale_(optimizer)
        optimizer.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
    x, y = task.draw(1000, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        return [nn.functional.cross_entropy(model(x), y).item(), scaler.get_scale()]


@pytest.mark.parametrize(("name", "gradients"), [("digits", "full"), ("transformer", "shard")])
def test_half_types_reach_the_loss_of_float32(name: str, gradients: str) -> None:
    from sklearn.datasets import load_digits  # here: ranks, which import this file, need none of it

    data = load_digits(return_X_y=True) if name == "digits" else ()
    wanted = ranks.run(train, RANKS, name, "float32", gradients, *data)[0][0]
    assert wanted < 1.2
    for dtype in ("bfloat16", "float16"):
        found = ranks.run(train, RANKS, name, dtype, gradients, *data)
        assert found[0] == found[1]
        assert found[0][0] < wanted + TOLERANCE, dtype
        assert dtype == "bfloat16" or found[0][1] > 2**8
