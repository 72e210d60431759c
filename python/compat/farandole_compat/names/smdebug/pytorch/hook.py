# SPDX-License-Identifier: Apache-2.0
"""The hook."""

from farandole.sagemaker.debug_hook import Hook

__all__ = ["Hook"]
