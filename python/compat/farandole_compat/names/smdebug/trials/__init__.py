# SPDX-License-Identifier: Apache-2.0
"""Reading what hooks have saved."""

from farandole.sagemaker.trial import Trial, create_trial

__all__ = ["Trial", "create_trial"]
