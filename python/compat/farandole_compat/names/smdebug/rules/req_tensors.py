# SPDX-License-Identifier: Apache-2.0
"""What a rule says that it will look at."""

from farandole.sagemaker.required_tensors import RequiredTensors

__all__ = ["RequiredTensors"]
