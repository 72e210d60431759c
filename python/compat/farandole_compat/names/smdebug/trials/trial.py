# SPDX-License-Identifier: Apache-2.0
"""Reading what hooks have saved."""

from farandole.sagemaker.trial import Trial

__all__ = ["Trial"]
