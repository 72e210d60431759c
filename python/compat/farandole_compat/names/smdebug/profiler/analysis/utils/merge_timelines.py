# SPDX-License-Identifier: Apache-2.0
"""The timelines of all ranks in one file."""

from farandole.sagemaker.merged_timeline import MergedTimeline, MergeUnit

__all__ = ["MergeUnit", "MergedTimeline"]
