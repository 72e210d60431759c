# SPDX-License-Identifier: Apache-2.0
"""Optimizers: torch's, sharded over the ranks of a group (ZeRO-1), LAMB, LARS, linear scaling."""

from __future__ import annotations

from farandole.optim.lamb import LAMB
from farandole.optim.lars import LARS
from farandole.optim.linear_scaled_lr import linear_scaled_lr
from farandole.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer

__all__ = ["LAMB", "LARS", "ZeroRedundancyOptimizer", "linear_scaled_lr"]
