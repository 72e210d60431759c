# SPDX-License-Identifier: Apache-2.0
"""Units of time."""

from farandole.sagemaker.readers import TimeUnits

__all__ = ["TimeUnits"]
