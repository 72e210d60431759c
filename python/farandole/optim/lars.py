# SPDX-License-Identifier: Apache-2.0
"""LARS, for large batches. arXiv:1708.03888."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from farandole import _C
from farandole.optim.layer_wise import LayerWiseOptimizer
from farandole.optim.parameter_groups import Group


class LARS(LayerWiseOptimizer):
    """SGD whose lr of each parameter grows with its norm over that of its gradient.

    As torch.optim's for one process, and sharded by ZeroRedundancyOptimizer::

        optimizer = farandole.optim.LARS(model.parameters(), lr=1.0)

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate, which is multiplied by that of each parameter.
        momentum: What stays of the sum of gradients in each step.
        dampening: What is left out of a gradient when it is added to that sum.
        weight_decay: Times the parameter, added to its gradient.
        nesterov: Whether the step looks ahead.
        trust_coefficient: lr of a parameter whose norm is that of its gradient.
        eps: Added to the norm of the gradient.
        maximize: Whether to go up instead of down.

    Raises:
        InvalidArgument: a hyperparameter cannot be; it is a ValueError, as torch raises.
    """

    counts_steps: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    @staticmethod
    def rule(group: Group) -> _C.UpdateRule:
        """The formula with the hyperparameters of a group."""
        return _C.lars_rule(
            lr=float(group["lr"]),
            momentum=float(group["momentum"]),
            dampening=float(group["dampening"]),
            weight_decay=float(group["weight_decay"]),
            nesterov=bool(group["nesterov"]),
            trust_coefficient=float(group["trust_coefficient"]),
            eps=float(group["eps"]),
            maximize=bool(group["maximize"]),
        )
