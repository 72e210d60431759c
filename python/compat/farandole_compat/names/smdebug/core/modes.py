# SPDX-License-Identifier: Apache-2.0
"""Modes of steps."""

from farandole.debugger import ModeKeys

__all__ = ["ModeKeys"]
