# SPDX-License-Identifier: Apache-2.0
"""GPT-2: a language model whose head shares its weights with the embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from farandole.bench.models.transformer import TransformerBlock

VOCABULARY, MOST_TOKENS = 50257, 1024


class Gpt2(nn.Module):
    """124 million parameters with 768, 12, 12; 355 million with 1024, 24, 16."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(MOST_TOKENS, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(sequences, tokens) to the scores of each next token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.norm(self.blocks(self.embedding(tokens) + self.position(places)))
        return functional.linear(hidden, self.embedding.weight)
