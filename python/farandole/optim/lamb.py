# SPDX-License-Identifier: Apache-2.0
"""LAMB, for large batches. arXiv:1904.00962."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from farandole import _C
from farandole.optim.layer_wise import LayerWiseOptimizer
from farandole.optim.parameter_groups import Group


class LAMB(LayerWiseOptimizer):
    """Adam whose step of each parameter is as long as that parameter, times lr.

    As torch.optim's for one process, and sharded by ZeroRedundancyOptimizer::

        optimizer = farandole.optim.LAMB(model.parameters(), lr=2e-3)

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Length of a step against that of the parameter.
        betas: Decay of the averages of gradients and of their squares.
        eps: Added to the root of the average of squares.
        weight_decay: Times the parameter, added to Adam's step.
        bias_correction: Whether averages are corrected for their start at 0.
        maximize: Whether to go up instead of down.

    Raises:
        InvalidArgument: a hyperparameter cannot be; it is a ValueError, as torch raises.
    """

    counts_steps: ClassVar[bool] = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    @staticmethod
    def rule(group: Group) -> _C.UpdateRule:
        """The formula with the hyperparameters of a group."""
        beta1, beta2 = group["betas"]
        return _C.lamb_rule(
            lr=float(group["lr"]),
            beta1=float(beta1),
            beta2=float(beta2),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            bias_correction=bool(group["bias_correction"]),
            maximize=bool(group["maximize"]),
        )
