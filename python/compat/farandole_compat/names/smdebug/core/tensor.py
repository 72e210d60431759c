# SPDX-License-Identifier: Apache-2.0
"""A tensor of a trial."""

from farandole.debugger import StepState, Tensor

__all__ = ["StepState", "Tensor"]
