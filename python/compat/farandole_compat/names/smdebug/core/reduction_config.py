# SPDX-License-Identifier: Apache-2.0
"""Which numbers are saved of a tensor."""

from farandole.debugger import ReductionConfig

__all__ = ["ReductionConfig"]
