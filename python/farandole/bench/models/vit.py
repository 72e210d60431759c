# SPDX-License-Identifier: Apache-2.0
"""Vision transformers (arXiv:2010.11929) on 16 x 16 patches of 224 x 224 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farandole.bench.models.transformer import TransformerBlock

PIXELS, PATCH = 224, 16


class Vit(nn.Module):
    """ViT-S with 384, 12, 6; ViT-B with 768, 12, 12; 1000 classes."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (PIXELS // PATCH) ** 2 + 1, width) / 50)
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """(images, 3, 224, 224) to the scores of each class."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.token.expand(len(images), -1, -1)
        hidden = self.blocks(torch.cat([token, patches], dim=1) + self.position)
        scores: Tensor = self.head(self.norm(hidden[:, 0]))
        return scores
