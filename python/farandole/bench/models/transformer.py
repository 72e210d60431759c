# SPDX-License-Identifier: Apache-2.0
"""The block that language models and vision transformers are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TransformerBlock(nn.Module):
    """Attention, to what came before only if `causal`; then a perceptron; both pre-normalized."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (sequences, tokens, width)."""
        sequences, tokens, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).chunk(3, dim=-1)
        shape = (sequences, tokens, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.project(mixed.transpose(1, 2).reshape(x.shape))
        return torch.add(x, self.perceptron(x))
