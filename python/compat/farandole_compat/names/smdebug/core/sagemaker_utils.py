# SPDX-License-Identifier: Apache-2.0
"""Where a script runs."""

from farandole.sagemaker.places import is_sagemaker_job

__all__ = ["is_sagemaker_job"]
