# SPDX-License-Identifier: Apache-2.0
"""Running a rule."""

from farandole.sagemaker.rule import invoke_rule

__all__ = ["invoke_rule"]
