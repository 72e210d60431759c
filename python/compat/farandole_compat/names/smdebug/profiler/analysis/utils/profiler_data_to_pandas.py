# SPDX-License-Identifier: Apache-2.0
"""Tables of profiles."""

from farandole.sagemaker.frames import PandasFrame

__all__ = ["PandasFrame"]
