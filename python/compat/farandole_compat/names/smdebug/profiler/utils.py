# SPDX-License-Identifier: Apache-2.0
"""Units of time, and options that are true or false."""

from farandole.sagemaker.readers import TimeUnits
from farandole.sagemaker.truth import str2bool

__all__ = ["TimeUnits", "str2bool"]
