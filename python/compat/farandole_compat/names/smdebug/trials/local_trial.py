# SPDX-License-Identifier: Apache-2.0
"""Reading what hooks have saved."""

from farandole.sagemaker.trial import Trial as LocalTrial

__all__ = ["LocalTrial"]
