# SPDX-License-Identifier: Apache-2.0
"""The base of rules."""

from farandole.sagemaker.rule import Rule

__all__ = ["Rule"]
