# SPDX-License-Identifier: Apache-2.0
"""Reading what hooks have saved."""

from farandole.sagemaker.trial import create_trial

__all__ = ["create_trial"]
