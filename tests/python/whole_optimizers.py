# SPDX-License-Identifier: Apache-2.0
"""Optimizers that need whole parameters, as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, optim


class Shampoo(optim.Optimizer):
    """A preconditioner for the rows and one for the columns of a matrix (arXiv 1802.09568)."""

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_of(p, self.state[p], group)

    def _step_of(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        matrix = p.grad.reshape(p.shape[0], -1) if p.dim() > 0 else p.grad.reshape(1, 1)
        if not state:
            state["step"] = 0
            state["factors"] = [1e-3 * torch.eye(n, dtype=p.dtype) for n in matrix.shape]
            state["momentum"] = torch.zeros_like(p)
            state["note"] = {"shape": tuple(matrix.shape)}
        assert state["note"]["shape"] == tuple(matrix.shape)
        state["step"] += 1
        rows, columns = state["factors"]
        rows.add_(matrix @ matrix.T)
        columns.add_(matrix.T @ matrix)
        change = _power(rows) @ matrix @ _power(columns)
        state["momentum"].mul_(group["momentum"]).add_(change.reshape(p.shape))
        p.sub_(state["momentum"], alpha=group["lr"])


def _power(matrix: Tensor) -> Tensor:
    """To the power of -1/4."""
    values, vectors = torch.linalg.eigh(matrix.double())
    return ((vectors * values.clamp_min(1e-6) ** -0.25) @ vectors.T).to(matrix.dtype)


class BoundedAdamW(optim.AdamW):
    """Overrides step(): no parameter may have a larger norm than 3."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad and p.grad is not None:
                    p.mul_(min(1.0, 3.0 / float(p.norm() + 1e-6)))


class Replacing(optim.Optimizer):
    """Puts a new tensor in the place of a parameter's, as old code does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad
